"""A slave's side of one partition: finds where to resume, and takes its master's records.

`ReceiverRules` decides which records a slave takes, without I/O: only from its current master,
within the agreed session, in exact sequence, and never an epoch below the last one. It skips
records that it has. A session that breaks any of this is over: the slave offers its position anew.

Each of the four rules keeps out records of another past. A replaced master continues to send until
it learns of its replacement. A message of an earlier session may arrive after a rewind, and bring
back what was undone. A gap would never be filled, since the binlog is applied record by record. And
an older epoch means that the sender was replaced
(`tests/unit/zeppelin/replication/test_receiver_rules.py`).
"""

import asyncio
import contextlib
from collections.abc import Callable, Iterator
from enum import Enum
from itertools import count
from typing import Final

from msgspec.structs import replace

from raftwood.base.backoff import Backoff
from raftwood.base.environment import Environment
from raftwood.base.errors import DiskFull, Overloaded, RaftwoodError, Unavailable
from raftwood.base.logs import get_logger
from raftwood.net import Channel
from raftwood.zeppelin.model import Gap, NodeId, PartitionId
from raftwood.zeppelin.records import (
    BinlogPosition,
    BinlogRecord,
    KeyWrite,
    PartitionStore,
    decode_record,
)
from raftwood.zeppelin.replication.copy_pace import CopyThrottle
from raftwood.zeppelin.replication.epochs import (
    CutAfter,
    FullSync,
    StreamFrom,
    SyncAnswer,
    SyncOffer,
    WaitToSync,
)
from raftwood.zeppelin.replication.full_sync import IncomingCopy
from raftwood.zeppelin.replication.master import reached_of
from raftwood.zeppelin.replication.wire import (
    FULL_SYNC,
    REPAIR_KEYS,
    TRY_SYNC,
    CopyChunk,
    CopyRequest,
    ReceivedPart,
    RepairKeysRequest,
    SlaveStanding,
    TrySyncRequest,
    encode_copy,
)


class RecordVerdict(Enum):
    """The decision about a record."""

    TAKE = 1
    KNOWN = 2
    RESYNC = 3
    """A record in between was lost, or this one does not follow: begin anew."""


class ReceiverRules:
    """Decides which records one partition of a slave takes."""

    def __init__(self, *, master: NodeId) -> None:
        self.master = master
        self.session = 0
        """The session proposed or agreed on; 0: none. A proposed one counts because its records may
        overtake the master's answer."""
        self._epoch = 0
        self._last = 0

    def propose(self, session: int, *, epoch: int, last: int) -> None:
        """Begins a session at the store's present end.

        Its number was never used before, not even before a restart: a late message of a session
        with the same number would be taken for one of this
        (`test_sessions_of_a_slave_have_each_their_own_number`).
        """
        self._epoch, self._last = epoch, last
        self.session = session

    def follow(self, master: NodeId) -> None:
        """Follows another master: sessions with the last one are over."""
        self.master = master
        self.session = 0

    def hears(self, *, source: NodeId, session: int) -> bool:
        return source == self.master and self.session != 0 and session == self.session

    def judge(self, record: BinlogRecord) -> RecordVerdict:
        """Decides about one record of the present session."""
        if record.sequence <= self._last:
            return RecordVerdict.KNOWN
        if record.sequence > self._last + 1 or record.epoch < self._epoch:
            self.session = 0
            return RecordVerdict.RESYNC
        self._last, self._epoch = record.sequence, record.epoch
        return RecordVerdict.TAKE


def as_arrived(record: BinlogRecord, *, now_ms: int) -> BinlogRecord:
    """Returns a record as a slave applies it: a write that has expired on the way deletes.

    Expiries are absolute, as the master wrote them. If they counted from the arrival, a key would
    live longer on a slave than on its master, and come back after a failover (planted bug "relative
    times to live").
    """
    for write in record.writes:
        if write.expires_ms and write.expires_ms <= now_ms:
            break
    else:
        return record
    return replace(
        record,
        writes=tuple(
            KeyWrite(each.key, None) if each.expires_ms and each.expires_ms <= now_ms else each
            for each in record.writes
        ),
    )


# A slave's side of one partition: finds where to resume, and takes its master's records.

ASK_TIMEOUT_MS: Final = 3_000
_PAUSE: Final = Backoff(first_ms=150, longest_ms=150, jitter=0.67)
"""Between two attempts."""
REPAIR_KEYS_MAX: Final = 1_000
"""Keys in one request."""
SYNCS_MAX: Final = 16
"""Partitions of a node that sync with their masters at the same time: a node that starts with
thousands of them would block every master."""
COPIES_MAX: Final = 4
"""Whole copies that a node receives at the same time; others wait without asking."""
COPY_PAUSE: Final = Backoff(first_ms=750, longest_ms=750, jitter=0.67)
"""Pause before asking again a master that already sends enough copies."""
FULL_SYNC_TIMEOUT_MS: Final = 24 * 3_600_000

_log = get_logger("zeppelin")


class SlaveContext:
    """What all partitions of a node share to follow their masters."""

    def __init__(
        self,
        environment: Environment,
        *,
        channel_of: Callable[[NodeId], Channel | None],
        moved: Callable[[NodeId, PartitionId], None],
        copies_folder: str,
        boot: int,
        throttle: CopyThrottle,
    ) -> None:
        """`moved` is called when there is something to ack to a master."""
        self.environment = environment
        self.channel_of = channel_of
        self.moved = moved
        self.copies_folder = copies_folder
        self.sessions = count(boot << 32 | 1)
        """Session numbers, for all partitions; the boot number in front keeps them apart from those
        before a restart."""
        self.turns = asyncio.Semaphore(SYNCS_MAX)
        self.copied_bytes = self.streamed_bytes = 0
        """Bytes received since the node was started: of whole copies, and of records."""
        self.copies = asyncio.Semaphore(COPIES_MAX)
        self.throttle = throttle

    def now_ms(self) -> int:
        return self.environment.clock.wall_ns() // 1_000_000


class SlaveReplication:
    """A partition while this node is its slave."""

    def __init__(
        self,
        partition: PartitionId,
        store: PartitionStore,
        world: SlaveContext,
        *,
        replacing: Callable[[bool], None] = lambda _: None,
    ) -> None:
        """`replacing` is called when a rewind or replacement of the store begins and ends."""
        self._partition = partition
        self._replacing = replacing
        self._store = store
        self._world = world
        self._epoch = 0
        self._rules: ReceiverRules | None = None
        self._syncing: asyncio.Task[None] | None = None
        self.lag_bytes = 0
        """About how far the master was ahead in its last message."""
        self.gap: Gap | None = None
        """The gap in that message; None: the master reports none."""
        self.copied_bytes = self.copy_bytes = 0
        """Bytes received of a running whole copy, and its size; else 0."""
        self._incoming: IncomingCopy | None = None
        """A copy that is not complete yet, maybe after several attempts."""
        self._contact_ns: int | None = None
        self._is_ended = False
        self._is_changing = False
        """The store rewinds or restores, which must finish once begun: engine and binlog would be
        of two moments."""
        self._stop_listening = store.listen(self._moved)

    @property
    def is_streaming(self) -> bool:
        """Whether the master has agreed to send the next records."""
        return self._rules is not None and self._rules.session != 0 and self._syncing is None

    def follow(self, master: NodeId, *, epoch: int) -> None:
        """Follows a master from now on, at this epoch of the partition."""
        self._epoch = epoch
        if self._rules is None:
            self._rules = ReceiverRules(master=master)
        elif self._rules.master == master:
            return
        else:
            self._rules.follow(master)
            self._contact_ns = None
        self._begin_sync()

    async def end(self) -> None:
        """Stops following. A running change of the store is finished; other work is cancelled."""
        self._is_ended = True
        self._stop_listening()
        if self._syncing is not None:
            if not self._is_changing:
                self._syncing.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._syncing
        if self._incoming is not None:
            await self._incoming.remove()

    # Records from the master.

    def take(self, source: NodeId, part: ReceivedPart) -> None:
        """Takes records in one go: the binlog syncs them together."""
        rules = self._rules
        if self._is_ended or rules is None:
            return
        if not rules.hears(source=source, session=part.session):
            return
        now_ms = self._world.now_ms()
        try:
            for encoded in part.records:
                record = decode_record(encoded)
                verdict = rules.judge(record)
                if verdict is RecordVerdict.TAKE:
                    self._store.commit(as_arrived(record, now_ms=now_ms), encoded)
                    self._world.streamed_bytes += len(encoded)
                elif verdict is RecordVerdict.RESYNC:
                    self._begin_sync()
                    return
        except RaftwoodError as error:
            # The disk refuses more for now. A new session resumes behind the stored records:
            # dropping records and keeping the session would leave a gap.
            _log.warning("records are refused", partition=self._partition, reason=error.message)
            rules.session = 0
            self._begin_sync()

    def standing(self, master: NodeId) -> SlaveStanding | None:
        """Returns the ack to a master; None while no session is agreed on."""
        rules = self._rules
        if rules is None or rules.master != master or not self.is_streaming:
            return None
        store = self._store
        return SlaveStanding(
            self._partition, rules.session, reached_of(store), store.repairing is None
        )

    def answered(
        self, standing: SlaveStanding, lag_bytes: int | None, gap: Gap | None = None
    ) -> bool:
        """Takes the master's answer to a standing: how far it lags, None if the master sends
        nothing under this session. Returns whether the master sends to this replica now.

        By None a slave learns that its master has forgotten it, after a restart for example: no
        record would ever show it.
        """
        rules = self._rules
        if rules is None or rules.session != standing.session or not self.is_streaming:
            return False
        if lag_bytes is None:
            self._begin_sync()
            return False
        self.lag_bytes, self.gap = lag_bytes, gap
        self._contact_ns = self._world.environment.clock.monotonic_ns()
        return True

    def contact_ms(self) -> int | None:
        """Returns the time since the present master's last message; None: none yet."""
        if self._contact_ns is None:
            return None
        return (self._world.environment.clock.monotonic_ns() - self._contact_ns) // 1_000_000

    def _moved(self) -> None:
        if self.is_streaming and self._rules is not None:
            self._world.moved(self._rules.master, self._partition)

    # Finding where to resume.

    def _begin_sync(self) -> None:
        if self._syncing is None and not self._is_ended:
            self._syncing = asyncio.get_running_loop().create_task(self._sync())

    async def _sync(self) -> None:
        """Tries until the master streams, or this ends."""
        world = self._world
        while True:
            pause, is_done = _PAUSE, False
            try:
                async with world.turns:
                    wanted = await self._try()
                if isinstance(wanted, FullSync):
                    async with world.copies:
                        await self._copy(wanted.reason)
                is_done = isinstance(wanted, StreamFrom)
            except Overloaded:
                pause = COPY_PAUSE
            except (RaftwoodError, OSError) as error:
                _log.info("a slave tries again", partition=self._partition, reason=str(error))
            if is_done or self._is_ended:
                break
            await asyncio.sleep(pause.delay_s(0, world.environment.random))
        self._syncing = None
        self._moved()

    async def _try(self) -> SyncAnswer:
        """Offers this replica's position, and does what the master answers, except a copy."""
        rules, store = self._rules, self._store
        assert rules is not None
        master = rules.master
        channel = self._channel(master)
        session = next(self._world.sessions)
        rules.propose(session, epoch=store.epoch, last=store.last_sequence)
        offer = SyncOffer(
            epoch=store.epoch,
            first=store.first_sequence,
            last=store.last_sequence,
            epochs=tuple(store.epochs),
            repairing=store.repairing,
        )
        request = TrySyncRequest(self._partition, self._epoch, session, offer)
        answer = (await channel.ask(TRY_SYNC, request, ASK_TIMEOUT_MS)).answer
        if rules.session != session or rules.master != master:
            return WaitToSync()
        if isinstance(answer, StreamFrom):
            return answer
        # The master sends nothing under this session. While the store is rewound, records of
        # earlier sessions must not be taken either.
        rules.session = 0
        if isinstance(answer, CutAfter):
            return await self._rewind(channel, master, answer.sequence)
        return answer

    def _channel(self, master: NodeId) -> Channel:
        channel = self._world.channel_of(master)
        if channel is None:
            raise Unavailable(f"the address of {master} is not known yet")
        return channel

    async def _rewind(self, channel: Channel, master: NodeId, after: int) -> SyncAnswer:
        """Undoes the records that the master lacks; then the caller asks again, or takes a copy
        (`test_what_the_new_master_has_not_got_is_undone_on_the_old_one`).
        """
        keys = await self._store.touched(after=after)
        if keys is None:
            return FullSync("a flush has to be undone")
        values: list[KeyWrite] = []
        until: BinlogPosition | None = None
        while until is None or len(values) < len(keys):
            wanted = keys[len(values) : len(values) + REPAIR_KEYS_MAX]
            request = RepairKeysRequest(self._partition, self._epoch, wanted)
            response = await channel.ask(REPAIR_KEYS, request, ASK_TIMEOUT_MS)
            # All values must come from one master in one epoch: the position where the repair ends
            # has to be behind every one of them.
            if until is not None and response.position.epoch != until.epoch:
                raise Unavailable("the master began another epoch meanwhile")
            until = response.position
            values += response.values
        _log.info("a slave undoes records", partition=self._partition, after=after, keys=len(keys))
        with self._changing(master):
            await self._store.rewind(after=after, values=values, until=until)
        return WaitToSync()

    async def _copy(self, reason: str) -> None:
        """Takes a whole copy, or the rest of one that broke off."""
        world = self._world
        assert self._rules is not None
        master = self._rules.master
        channel = self._channel(master)
        if self._incoming is None:
            _log.info("a slave takes a whole copy", partition=self._partition, reason=reason)
            incarnation, number = self._partition
            attempt = world.environment.random.getrandbits(63)
            folder = f"{world.copies_folder}/in-{incarnation}-{number}-{attempt:016x}"
            self._incoming = IncomingCopy(world.environment.files, folder, world.throttle)
        incoming = self._incoming
        request = encode_copy(CopyRequest(self._partition, self._epoch, incoming.whole))
        self.copied_bytes = sum(size for size, _ in incoming.whole.values())
        try:
            stream = channel.stream(FULL_SYNC, request, timeout_ms=FULL_SYNC_TIMEOUT_MS)
            with world.throttle.copying():
                async with stream as items:
                    end = await incoming.receive(items, lambda chunk: self._came(master, chunk))
            self._check_still_master(master)
        except BaseException as error:
            self._incoming = await _kept(incoming, error)
            raise
        finally:
            self.copied_bytes = self.copy_bytes = 0
        self._incoming = None
        with self._changing(master):
            await self._store.restore(incoming.folder, sequence=end.sequence, epochs=end.epochs)

    def _came(self, master: NodeId, chunk: CopyChunk) -> None:
        self._check_still_master(master)
        self.copied_bytes += len(chunk.data)
        self._world.copied_bytes += len(chunk.data)
        self.copy_bytes = max(self.copy_bytes, chunk.total_bytes)

    @contextlib.contextmanager
    def _changing(self, master: NodeId) -> Iterator[None]:
        self._check_still_master(master)
        self._is_changing = True
        self._replacing(True)
        try:
            yield
        finally:
            self._is_changing = False
            self._replacing(False)

    def _check_still_master(self, master: NodeId) -> None:
        """Raises `Unavailable` if the master has changed since it answered.

        Only the present master may cause records here to be cut or replaced. Records that the last
        one lacks may be acked writes of the present one, or the reason why this very replica is
        chosen next.
        """
        if self._rules is None or self._rules.master != master:
            raise Unavailable(f"{master} is master no more: the next one is asked")


async def _kept(incoming: IncomingCopy, error: BaseException) -> IncomingCopy | None:
    """Keeps the received part of a copy if its master may be away only for a moment: a broken
    connection must not restart hundreds of gigabytes
    (`test_a_copy_that_breaks_off_goes_on_with_the_files_that_it_lacks`).
    """
    if isinstance(error, Unavailable) and not isinstance(error, DiskFull):
        await incoming.close()
        return incoming
    await incoming.remove()
    return None
