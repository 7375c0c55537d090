"""One append under a name that others may use as well: asked again until it is answered."""

import asyncio
from typing import Final

import xxhash

from raftwood.base.errors import InvalidInput, RaftwoodError, Unavailable
from raftwood.base.files import Buffer
from raftwood.logservice.client.shard_link import PAUSE_LONGEST_S, ShardLink
from raftwood.logservice.errors import RecordTooLarge
from raftwood.logservice.records import encode_user_entry
from raftwood.logservice.wire import APPEND, decode_lsns, encode_append

SEQUENCE_MAX: Final = (1 << 63) - 1


def producer_key(name: str) -> bytes:
    """What stands for a producer in the log: the same for ever, for all clients."""
    return xxhash.xxh3_128_digest(name.encode())


async def append_once(
    link: ShardLink,
    payload: Buffer,
    *,
    holder: int,
    producer: str,
    sequence: int,
    record_bytes_max: int,
    timeout_ms: int,
) -> int:
    """The record's LSN; `DeadlineExceeded` leaves open whether it is written."""
    if not producer or not 0 <= sequence <= SEQUENCE_MAX:
        raise InvalidInput(
            f"sequence {sequence} of producer {producer[:140]!r}: give a name, and a number from 0 "
            f"to {SEQUENCE_MAX}"
        )
    if len(payload) > record_bytes_max:
        raise RecordTooLarge(
            f"a record of {len(payload)} bytes is above the limit of {record_bytes_max}: split it"
        )
    entry = encode_user_entry(
        payload,
        holder=holder,
        producer=producer_key(producer),
        sequence=sequence,
        is_ordered=False,
    )
    request = encode_append(link.shard, [entry])
    loop = asyncio.get_running_loop()
    deadline = loop.time() + timeout_ms / 1000
    reason: RaftwoodError | None = None
    while True:
        remaining_ms = int((deadline - loop.time()) * 1000)
        if remaining_ms <= 0:
            raise link.silence(reason)
        answer = await link.ask_raw(APPEND, request, timeout_ms=remaining_ms)
        (result,) = decode_lsns(answer, 1)
        if isinstance(result, int):
            return result
        if not isinstance(result, Unavailable):
            raise result
        reason = result
        link.note(result, asked=link.guess())
        await asyncio.sleep(PAUSE_LONGEST_S)
