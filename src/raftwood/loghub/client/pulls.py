"""One pull of a shard: what readers and consumers ask of a gateway, over and over."""

from typing import Final

from raftwood.base.position import Position, position_to_bytes
from raftwood.loghub.client.gateways import Gateways
from raftwood.loghub.client.pulled_batches import PulledBatch
from raftwood.loghub.wire import (
    PULL,
    Pulled,
    PullRequest,
    StreamRequest,
    decode_pulled,
    encode_pull,
)

_RETRY_MS: Final = 5_000


async def pull(
    gateways: Gateways,
    stream: StreamRequest,
    *,
    shard: int,
    position: Position,
    batches_max: int,
    bytes_max: int,
    wait_ms: int,
    timeout_ms: int,
) -> Pulled:
    """Batches from a position on; at the end of a shard it waits so long for some to come."""
    request = PullRequest(
        stream.project,
        stream.logstore,
        shard,
        position_to_bytes(position),
        batches_max,
        bytes_max,
        wait_ms,
    )
    payload = await gateways.call(
        PULL,
        encode_pull(request),
        timeout_ms=timeout_ms,
        attempt_ms=wait_ms + _RETRY_MS,
        turn=shard,
    )
    return decode_pulled(payload)


def batches_of(shard: int, pulled: Pulled) -> list[PulledBatch]:
    """Each batch with the position behind it."""
    found = pulled.batches
    following = [*(each.position for each in found), pulled.next][1:]
    return [
        PulledBatch(shard, stored.position, behind, stored.data)
        for stored, behind in zip(found, following, strict=True)
    ]
