"""Reading a shard: entries of the raft log as the records that a reader may see."""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AbstractAsyncContextManager
from typing import Final

from raftwood.base.errors import Conflict, OutOfRange, Unavailable
from raftwood.base.files import Buffer
from raftwood.logservice.errors import LsnPastEnd, LsnTruncated
from raftwood.logservice.log_rules import LogState
from raftwood.logservice.log_state_machine import LogStateMachine
from raftwood.logservice.records import (
    DATA_OFFSET,
    HEAD_BYTES,
    KIND_OFFSET,
    RecordKind,
    UpdateKind,
)
from raftwood.logservice.wire import ReadRequest, encode_records
from raftwood.raft.core import EntryKind
from raftwood.raft.host.host import Host
from raftwood.raft.host.runs import LogEntry

WAIT_SHARE: Final = 0.75
"""Of a caller's time, for waiting at the end of the log."""
_NORMAL = EntryKind.NORMAL
_USER = int(UpdateKind.USER)
_LEASEHOLDER = int(UpdateKind.LEASEHOLDER)


async def read_shard(
    host: Host,
    request: ReadRequest,
    turn: Callable[[], AbstractAsyncContextManager[None]],
    *,
    bytes_max: int,
    timeout_ms: int,
) -> list[Buffer]:
    """Records with all that was acknowledged before the call, as `wire.encode_records` makes them.

    Where there is nothing after the LSN, waits for as long as the request says. Memory is taken in
    its turn only.
    """
    shard, first = request.shard, request.first_lsn
    loop = asyncio.get_running_loop()
    # Some time is left for the answer: else a caller with less time than it waits for never got it.
    wait_until = loop.time() + timeout_ms * WAIT_SHARE / 1000
    state: LogState = await host.read(shard, _whole, timeout_ms=timeout_ms)
    _check_range(host, state, shard, first)
    if first == state.sealed_lsn:
        await asyncio.sleep(max(0.0, min(request.wait_ms / 1000, wait_until - loop.time())))
        return encode_records(first, [], b"", [])
    index = state.lsns.index_from(first)
    if index > host.applied(shard) and request.wait_ms:
        machine = host.machine(shard)
        assert isinstance(machine, LogStateMachine)
        longest_ms = int((wait_until - loop.time()) * 1000)
        await machine.wait_past(index - 1, max(0, min(request.wait_ms, longest_ms)))
    async with turn():
        return await _read(host, request, index, bytes_max=bytes_max)


async def _read(host: Host, request: ReadRequest, index: int, *, bytes_max: int) -> list[Buffer]:
    shard, first = request.shard, request.first_lsn
    try:
        entries, next_index = await host.read_log(shard, index, bytes_max=bytes_max)
    except OutOfRange as error:
        # The log was cut meanwhile, or a leader's snapshot has taken its place.
        _check_range(host, host.stale_read(shard, _whole), shard, first)
        raise Unavailable(f"the log of shard {shard} is being replaced: try again") from error
    # A truncation meanwhile has forgotten which of the entries were refused.
    state = host.stale_read(shard, _whole)
    _check_range(host, state, shard, first)
    size = 0
    for position, entry in enumerate(entries):
        size += len(entry.payload)
        if size > bytes_max and position:
            next_index = entry.index
            entries = entries[:position]
            break
    return _encoded(state, entries, next_index, has_internal=request.has_internal)


def _whole(state: LogState) -> LogState:
    return state


def _check_range(host: Host, state: LogState, shard: int, lsn: int) -> None:
    if state.is_restoring:
        raise Conflict(f"shard {shard} is being restored from a backup: wait until that is done")
    first = state.first_lsn
    end = state.sealed_lsn or state.lsns.lsn_from(host.applied(shard) + 1)
    if lsn < first:
        raise LsnTruncated(
            f"LSN {lsn} of shard {shard} is truncated: {first} to {end - 1} can be read", first, end
        )
    if lsn > end:
        raise LsnPastEnd(
            f"LSN {lsn} of shard {shard} is not written yet: {first} to {end - 1} can be read",
            first,
            end,
        )


def _encoded(
    state: LogState, entries: Sequence[LogEntry], next_index: int, *, has_internal: bool
) -> list[Buffer]:
    lsns = state.lsns
    next_lsn = lsns.lsn_from(next_index)
    sealed = state.sealed_lsn
    if sealed and next_lsn > sealed:
        next_lsn = sealed
        entries = [entry for entry in entries if lsns.lsn_from(entry.index) < sealed]
    if lsns.spans:
        entries = [entry for entry in entries if lsns.lsn_of(entry.index) is not None]
    has_holes = bool(entries) and state.has_holes(
        lsns.lsn_from(entries[0].index), lsns.lsn_from(entries[-1].index)
    )
    if has_internal or has_holes:
        kinds = [kind_of(state, entry) for entry in entries]
        if not has_internal:
            chosen = [
                entry for entry, kind in zip(entries, kinds, strict=True) if kind is RecordKind.USER
            ]
            kinds = [RecordKind.USER] * len(chosen)
        else:
            chosen = list(entries)
    else:
        chosen = [entry for entry in entries if is_user_entry(entry)]
        kinds = [RecordKind.USER] * len(chosen)
    return encode_records(
        next_lsn,
        [lsns.lsn_from(entry.index) for entry in chosen]
        if lsns.spans
        else [entry.index for entry in chosen],
        bytes(kinds),
        [memoryview(entry.payload)[DATA_OFFSET:] for entry in chosen],
    )


def is_user_entry(entry: LogEntry) -> bool:
    payload = entry.payload
    return entry.kind is _NORMAL and len(payload) >= HEAD_BYTES and payload[KIND_OFFSET] == _USER


def kind_of(state: LogState, entry: LogEntry) -> RecordKind:
    """What an entry is to a reader."""
    if is_user_entry(entry):
        hole = state.hole_at(state.lsns.lsn_from(entry.index))
        return RecordKind.USER if hole is None else hole
    payload = entry.payload
    is_update = entry.kind is _NORMAL and len(payload) >= HEAD_BYTES
    if is_update and payload[KIND_OFFSET] == _LEASEHOLDER:
        return RecordKind.LEASE_UPDATE
    return RecordKind.INTERNAL
