"""Serves clients' requests to log shards: appends, reads, updates.

A read takes entries of the raft log and answers the records that a reader may see. Reads under way
are bounded: a few tiny requests can ask for more than fits the memory. Reads that wait at the end
of a log are bounded, too: each is a task of the server, which has room for so many, and others,
such as the heartbeats of stores, need room as well.
"""

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Iterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager
from typing import Any, Final

import msgspec

from raftwood.base.errors import (
    Conflict,
    InvalidInput,
    NotFound,
    NotLeader,
    OutOfRange,
    Overloaded,
    RaftwoodError,
    Unavailable,
)
from raftwood.base.files import Buffer
from raftwood.logservice.errors import LsnPastEnd, LsnTruncated, RecordTooLarge
from raftwood.logservice.hakeeper.messages import HAKEEPER_SHARD, is_log
from raftwood.logservice.log_rules import LogShardState
from raftwood.logservice.log_state_machine import LogStateMachine
from raftwood.logservice.records import (
    DATA_OFFSET,
    HEAD_BYTES,
    KIND_OFFSET,
    RecordKind,
    UpdateKind,
    encode_update,
)
from raftwood.logservice.server.forwarder import Forwarder
from raftwood.logservice.server.metrics import ShardMetrics
from raftwood.logservice.settings import LogServiceSettings
from raftwood.logservice.wire import (
    AGAIN,
    APPEND,
    CONNECT,
    FORWARD,
    INFO,
    LOCATE,
    READ,
    RECORDS_MAX,
    UPDATE,
    Location,
    ReadRequest,
    ShardInfo,
    ShardRequest,
    UpdateRequest,
    decode_append,
    decode_read_request,
    encode_append,
    encode_lsns,
    encode_read_request,
    encode_records,
)
from raftwood.net import Call, Payload, Service, TypedMethod
from raftwood.net.identity import READER_ROLE
from raftwood.raft.core import EntryKind
from raftwood.raft.entry_format import LogEntry
from raftwood.raft.node_host import NodeHost

READS_AT_ONCE: Final = 16
"""Each takes up to `read_bytes_max` of memory, several times over."""
WAITING_MAX: Final = 2_048
CONGESTED_PAUSE_S: Final = 0.01


class ReadTurns:
    """Bounds the reads of one store."""

    def __init__(self) -> None:
        self._turns = asyncio.Semaphore(READS_AT_ONCE)
        self.waiting = 0

    @contextmanager
    def patience(self, wait_ms: int) -> Iterator[None]:
        """Counts a read that may wait for records; refuses it if too many wait."""
        if wait_ms > 0 and self.waiting >= WAITING_MAX:
            raise Overloaded(
                f"{self.waiting} readers wait for records on this store: try again later"
            )
        patient = int(wait_ms > 0)
        self.waiting += patient
        try:
            yield
        finally:
            self.waiting -= patient

    @asynccontextmanager
    async def turn(self, call: Call) -> AsyncIterator[None]:
        """Bounds reads that take memory; waits until the caller has taken its earlier answers."""
        while True:
            async with self._turns:
                if not call.is_congested:
                    yield
                    return
            await asyncio.sleep(CONGESTED_PAUSE_S)


WAIT_SHARE: Final = 0.75
"""The share of a caller's time for waiting at the end of the log."""
_NORMAL = EntryKind.NORMAL
_USER = int(UpdateKind.USER)
_LEASEHOLDER = int(UpdateKind.LEASEHOLDER)


async def read_shard(
    host: NodeHost,
    request: ReadRequest,
    turn: Callable[[], AbstractAsyncContextManager[None]],
    *,
    bytes_max: int,
    timeout_ms: int,
) -> list[Buffer]:
    """Encodes records (`wire.encode_records`), with all that was acknowledged before the call.

    If there is nothing at the LSN yet, waits as long as the request allows. Takes memory in its
    turn only.
    """
    shard, first = request.shard, request.first_lsn
    loop = asyncio.get_running_loop()
    # Some time is left for the answer: a caller whose time is below its wait would never get it.
    wait_until = loop.time() + timeout_ms * WAIT_SHARE / 1000
    state: LogShardState = await host.read(shard, _whole, timeout_ms=timeout_ms)
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


async def _read(
    host: NodeHost, request: ReadRequest, index: int, *, bytes_max: int
) -> list[Buffer]:
    shard, first = request.shard, request.first_lsn
    try:
        entries, next_index = await host.read_log(shard, index, bytes_max=bytes_max)
    except OutOfRange as error:
        # The log was cut meanwhile, or a leader's snapshot has replaced it.
        _check_range(host, host.stale_read(shard, _whole), shard, first)
        raise Unavailable(f"the log of shard {shard} is being replaced: try again") from error
    # A truncation meanwhile dropped the list of refused entries.
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


def _whole(state: LogShardState) -> LogShardState:
    return state


def _check_range(host: NodeHost, state: LogShardState, shard: int, lsn: int) -> None:
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
    state: LogShardState, entries: Sequence[LogEntry], next_index: int, *, has_internal: bool
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


def kind_of(state: LogShardState, entry: LogEntry) -> RecordKind:
    """The kind of an entry as a reader sees it."""
    if is_user_entry(entry):
        hole = state.hole_at(state.lsns.lsn_from(entry.index))
        return RecordKind.USER if hole is None else hole
    payload = entry.payload
    is_update = entry.kind is _NORMAL and len(payload) >= HEAD_BYTES
    if is_update and payload[KIND_OFFSET] == _LEASEHOLDER:
        return RecordKind.LEASE_UPDATE
    return RecordKind.INTERNAL


TIMEOUT_MS_MAX: Final = 60_000
WAIT_MS_MAX: Final = 30_000
FORWARDS_MAX: Final = 1_000
"""Requests under way to other stores at once."""


class ShardService:
    """Serves the shards of one host; `check_room` raises if the disk is too full to append."""

    def __init__(
        self,
        host: NodeHost,
        forwarder: Forwarder,
        settings: LogServiceSettings,
        metrics: ShardMetrics,
        check_room: Callable[[], None],
    ) -> None:
        self._host = host
        self._forwarder = forwarder
        self._settings = settings
        self._metrics = metrics
        self._check_room = check_room
        self._loop = asyncio.get_running_loop()
        self._entry_bytes_max = settings.record_bytes_max + HEAD_BYTES
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._reads = ReadTurns()

    def register(self, service: Service) -> None:
        service.fast(APPEND, self._append)
        service.task(READ, self._read)
        service.typed(UPDATE, self._update)
        service.typed(INFO, self._info)
        service.typed(CONNECT, self._connect)
        service.typed(LOCATE, self._locate)

    async def close(self) -> None:
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(list(self._tasks))

    # Appending

    def _append(self, call: Call, payload: Payload) -> None:
        shard, flags, entries = decode_append(payload)
        self._check_append(shard, entries)
        began = self._loop.time()
        size = len(payload)

        def done(results: list[Any] | None, error: RaftwoodError | None) -> None:
            if results is not None:
                self._metrics.appended(shard, len(results), size, self._loop.time() - began)
                call.reply(encode_lsns(results))
            else:
                call.fail(error or Unavailable("the append was dropped"))

        try:
            # The other store checks its own disk.
            if self._host.is_leading(shard):
                self._check_room()
            self._host.propose_batch(shard, entries, done, again=bool(flags & AGAIN))
        except (NotLeader, NotFound) as error:
            self._run(call, self._append_elsewhere(call, shard, entries, error, flags))

    def _check_append(self, shard: int, entries: list[bytes]) -> None:
        if not 0 < len(entries) <= RECORDS_MAX:
            raise InvalidInput(f"an append has 1 to {RECORDS_MAX} records, not {len(entries)}")
        _check_log(shard)
        largest = max(map(len, entries))
        if largest > self._entry_bytes_max:
            raise RecordTooLarge(
                f"a record of {largest - HEAD_BYTES} bytes is above the limit of "
                f"{self._settings.record_bytes_max}: split it, or raise "
                "logservice.record_bytes_max on all stores"
            )

    async def _append_elsewhere(
        self, call: Call, shard: int, entries: list[bytes], error: RaftwoodError, flags: int
    ) -> bytes:
        if not flags & FORWARD:
            raise await self._refusal(shard, error)
        request = encode_append(shard, entries, again=bool(flags & AGAIN))
        return await self._forwarder.ask_leader(shard, APPEND, request, _remaining_ms(call))

    async def _refusal(self, shard: int, error: RaftwoodError) -> RaftwoodError:
        return error if isinstance(error, NotLeader) else await self._forwarder.refusal(shard)

    def _run(self, call: Call, work: Coroutine[Any, Any, bytes]) -> None:
        if len(self._tasks) >= FORWARDS_MAX:
            work.close()
            raise Unavailable("too many requests wait for other stores: ask the leader itself")

        async def answer() -> None:
            try:
                call.reply(await work)
            except RaftwoodError as error:
                call.fail(error)

        task = self._loop.create_task(answer())
        self._tasks[task] = None
        task.add_done_callback(lambda done: self._tasks.pop(done, None))

    # Reading

    async def _read(self, call: Call, payload: Payload) -> Buffer | list[Buffer]:
        try:
            request = decode_read_request(payload)
        except (msgspec.MsgspecError, ValueError) as error:
            raise InvalidInput(f"the request to read cannot be read: {error}") from error
        _check_log(request.shard)
        if request.bytes_max <= 0:
            raise InvalidInput("read 1 byte at least")
        began = self._loop.time()
        try:
            with self._reads.patience(request.wait_ms):
                answer = await read_shard(
                    self._host,
                    msgspec.structs.replace(request, wait_ms=min(request.wait_ms, WAIT_MS_MAX)),
                    lambda: self._reads.turn(call),
                    bytes_max=min(request.bytes_max, self._settings.read_bytes_max),
                    timeout_ms=_remaining_ms(call),
                )
        except (NotLeader, NotFound) as error:
            if not request.forward:
                raise await self._refusal(request.shard, error) from error
            return await self._read_elsewhere(call, request)
        elapsed_s = self._loop.time() - began
        self._metrics.read(request.shard, len(answer) - 1, sum(map(len, answer)), elapsed_s)
        return answer

    async def _read_elsewhere(self, call: Call, request: ReadRequest) -> Payload:
        asked = encode_read_request(msgspec.structs.replace(request, forward=False))
        return await self._forwarder.ask_leader(request.shard, READ, asked, _remaining_ms(call))

    # The rest

    async def _update(self, call: Call, request: UpdateRequest) -> int:
        _check_log(request.shard)
        try:
            kind = UpdateKind(request.kind)
        except ValueError:
            raise InvalidInput(f"update {request.kind} is none that this program knows") from None
        if kind is UpdateKind.USER:
            raise InvalidInput("a record is appended, and is no update")
        timeout_ms = _remaining_ms(call)
        try:
            result = await self._host.propose(
                request.shard, encode_update(kind, request.number), timeout_ms=timeout_ms
            )
        except (NotLeader, NotFound) as error:
            if not request.forward:
                raise await self._refusal(request.shard, error) from error
            asked = UPDATE.encode(msgspec.structs.replace(request, forward=False))
            answer = await self._forwarder.ask_leader(request.shard, UPDATE, asked, timeout_ms)
            return UPDATE.decode_response(answer)
        return int(result)

    async def _info(self, call: Call, request: ShardRequest) -> ShardInfo:
        return await self._described_by_leader(call, request, INFO)

    async def _connect(self, call: Call, request: ShardRequest) -> ShardInfo:
        """Checks that the shard takes writes, and reads its state with all that was acknowledged.

        For a client that may only read, checks the reading alone.
        """
        method = INFO if call.peer.role == READER_ROLE else CONNECT
        return await self._described_by_leader(call, request, method)

    async def _described_by_leader(
        self, call: Call, request: ShardRequest, method: TypedMethod[ShardRequest, ShardInfo]
    ) -> ShardInfo:
        timeout_ms = _remaining_ms(call)
        shard = request.shard
        _check_log(shard)
        try:
            if not self._host.is_leading(shard):
                raise NotLeader(
                    f"store {self._host.id} does not lead shard {shard}", self._host.leader(shard)
                )
            if method is CONNECT:
                await self._host.check_writes(shard, timeout_ms=timeout_ms)
            return await self._described(shard, timeout_ms)
        except (NotLeader, NotFound) as error:
            if not request.forward:
                raise await self._refusal(shard, error) from error
            asked = method.encode(ShardRequest(shard))
            return method.decode_response(
                await self._forwarder.ask_leader(shard, method, asked, timeout_ms)
            )

    async def _described(self, shard: int, timeout_ms: int) -> ShardInfo:
        def ask(state: LogShardState) -> ShardInfo:
            status = self._host.status(shard)
            return ShardInfo(
                shard=shard,
                leader=status.leader,
                term=status.term,
                epoch=status.epoch,
                voters=status.voters,
                learners=status.learners,
                log=state.info(next_lsn=state.lsns.lsn_from(status.applied + 1)),
                latest_lsn=state.lsns.lsn_from(state.applied + 1) - 1,
                log_bytes=self._host.stored_bytes(shard)[0],
                snapshots=status.snapshots,
                record_bytes_max=self._settings.record_bytes_max,
                addresses=status.addresses,
            )

        info: ShardInfo = await self._host.read(shard, ask, timeout_ms=timeout_ms)
        return info

    async def _locate(self, _: Call, shard: int | str) -> Location:
        return await self._forwarder.locate(shard)


def _check_log(shard: int) -> None:
    if not is_log(shard):
        name = "HAKeeper" if shard == HAKEEPER_SHARD else "a guest of the stores"
        raise InvalidInput(f"shard {shard} is {name}, and no log: `raftwood log list` shows logs")


def _remaining_ms(call: Call) -> int:
    remaining = call.remaining_ms()
    return TIMEOUT_MS_MAX if remaining is None else min(TIMEOUT_MS_MAX, max(1, remaining))
