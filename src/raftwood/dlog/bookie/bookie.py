"""`Bookie`: the entries of many ledgers in one folder, durable before they are acked.

A ledger is a group of the segment log. Its runs are its entries in the order of their arrival, one
each: the run's index counts arrivals, the run's term is the entry's number. So the log's own index,
which is rebuilt from headers alone, tells which entries there are. The rest of what must persist
(master key, fence, published last confirmed entry) is the group's state.

A bookie that **began anew** has forgotten all that it ever acked. Every ledger that was there
before is in limbo: until a repair has gone through all of them, the bookie answers "unknown" where
another would say that it lacks an entry; and it takes entries from recoveries and repairs alone,
because it may have forgotten a fence (decision 0032).

`check_bookie` is the bookie's part of `raftwood store check`. Entries need no check of their own:
they are records of the log, which has a checksum for each.
"""

import asyncio
from collections.abc import Callable, Iterable
from typing import Final

from msgspec.structs import replace

from raftwood.base.environment import Environment
from raftwood.base.errors import (
    DiskFull,
    InvalidInput,
    NotFound,
    RaftwoodError,
    StoreDamaged,
    StoreError,
)
from raftwood.base.files import Buffer
from raftwood.base.logs import get_logger
from raftwood.disk.inspection import Findings, FolderContent
from raftwood.disk.segment_log import DropGroup, LogSettings, LogStatistics, Run, SetState
from raftwood.disk.segment_log.recovery import Damage
from raftwood.disk.store import FolderIdentity, Store
from raftwood.dlog.bookie.ledger_descriptor import (
    ENTRY_MAX,
    HEAD,
    MASTER_KEY_BYTES_MAX,
    EntryIndex,
    LastConfirmedWaiters,
    LedgerDescriptor,
    LedgerNote,
    Limbo,
    checked_head,
    decode_note,
    encode_note,
)
from raftwood.dlog.errors import BadDigest, BookieReadOnly, NoSuchLedger
from raftwood.dlog.ledgers.metadata import LEDGER_MAX, BookieId

_NUMBER: Final = 0
"""The folder's stamp has a store's number; a bookie's id is in the log instead."""
_OWN_GROUP: Final = LEDGER_MAX
"""The group of no ledger: its state is the bookie's id and, if it began anew, the two numbers of
its limbo, each after a zero byte."""
_log = get_logger("bookie")


class BookieCounts:
    """Counts since the bookie was opened, for metrics."""

    __slots__ = ("added_bytes", "adds", "damaged", "fences", "read_bytes", "reads", "repeated")

    def __init__(self) -> None:
        self.adds = self.added_bytes = self.repeated = 0
        self.reads = self.read_bytes = self.damaged = 0
        self.fences = 0


class Bookie:
    """A bookie on one event loop. Use `open`, and `close` when done."""

    def __init__(self, id_: BookieId, store: Store, *, waits_max: int) -> None:
        self.id = id_
        self.counts = BookieCounts()
        self._store = store
        self._log = store.log
        self._waits = LastConfirmedWaiters(waits_max)
        self._damage: StoreError | None = None
        self._limbo = Limbo(id_, *_owner_of(store)[1])
        self._ledgers: dict[int, LedgerDescriptor] = {}
        for ledger in self._log.groups():
            if ledger != _OWN_GROUP:
                self._ledgers[ledger] = self._held(ledger)

    @classmethod
    async def open(
        cls,
        environment: Environment,
        folder: str,
        *,
        cluster: str,
        id_: BookieId,
        settings: LogSettings | None = None,
        waits_max: int = 10_000,
    ) -> "Bookie":
        """Opens the bookie's folder, or begins a new one.

        `InvalidInput` if it is another bookie's, `StoreDamaged` if synced data are bad: recoveries
        wait for a bookie that does not serve, which is safe.
        """
        try:
            store = await Store.open(
                environment, folder, cluster=cluster, store=_NUMBER, settings=settings
            )
            try:
                await _check_owner(store, id_)
                return cls(id_, store, waits_max=waits_max)
            except BaseException:
                await store.close()
                raise
        except StoreDamaged as error:
            raise StoreDamaged(f"{error.message}. {_remedy(id_)}") from error

    def _held(self, ledger: int) -> LedgerDescriptor:
        state = self._log.state(ledger)
        if state is None:
            raise StoreDamaged(f"ledger {ledger} in {self._store.path} has entries and no key")
        index = EntryIndex.of_arrivals(self._log.terms(ledger))
        return LedgerDescriptor(ledger, decode_note(state, ledger=ledger), index)

    # Identity and state.

    @property
    def instance(self) -> str:
        """A random id of the folder: a wiped folder is another instance."""
        return self.identity.incarnation

    @property
    def identity(self) -> FolderIdentity:
        return self._store.identity

    @property
    def is_read_only(self) -> bool:
        """Whether it takes no entries at the moment: its disk is full or damaged."""
        return self._damage is not None or self._log.is_full

    async def enter_limbo(self, end: int) -> None:
        """Durably notes that entries of any ledger below `end` may have been here and are gone."""
        self._limbo = Limbo(self.id, end, end)
        await self._save_limbo()

    @property
    def has_doubts(self) -> bool:
        """Whether the bookie began anew, and not all its ledgers are repaired yet."""
        return self._limbo.doubts_below > 0

    async def end_doubts(self) -> None:
        """Notes that all ledgers were repaired: an entry that is not here never was."""
        self._limbo.doubts_below = 0
        await self._save_limbo()

    async def _save_limbo(self) -> None:
        limbo = self._limbo
        numbers = (self.id.encode(), limbo.refuses_below, limbo.doubts_below)
        await self._log.commit(SetState(_OWN_GROUP, b"%s\0%d\0%d" % numbers))

    @property
    def wait_count(self) -> int:
        return self._waits.count

    def ledgers(self) -> list[int]:
        """All ledgers with an entry or a note in this bookie, in order."""
        return sorted(self._ledgers)

    def ledger_count(self) -> int:
        return len(self._ledgers)

    def entry_count(self, ledger: int) -> int:
        return len(self._known(ledger).index)

    def statistics(self) -> LogStatistics:
        return self._log.statistics()

    # Writing. On return the data are written, not synced: see `when_durable`.

    def add(
        self, packed: Buffer, *, master_key: bytes, is_recovery: bool = False
    ) -> RaftwoodError | None:
        """Takes an entry; None means that it is here, to be acked once it is durable.

        The ack waits for the sync: an ack quorum in one rack loses its power together, and the
        entry would be on no disk (planted bug "an ack comes before the sync").
        """
        try:
            ledger, entry, last_confirmed = checked_head(packed)
            if ledger < self._limbo.refuses_below:
                refusal = self._limbo.refusal_of_add(ledger, is_recovery=is_recovery)
                if refusal is not None:
                    return refusal
            held = self._ledgers.get(ledger)
            if held is None:
                held = self._first_add(ledger, entry, packed, master_key)
            else:
                refusal = held.refusal_of_add(master_key, is_recovery=is_recovery)
                if refusal is not None:
                    return refusal
                index = held.index
                # Acked again without a look at the bytes: only the writer, or a recovery with the
                # writer's own bytes, can have stored the entry under this key.
                if index.arrival_of(entry):
                    self.counts.repeated += 1
                    return None
                self._log.append(
                    ledger, term=entry, first_index=index.next_arrival, count=1, payload=packed
                )
                index.add(entry)
        except (DiskFull, StoreError) as error:
            return self._cannot_write(error)
        except RaftwoodError as error:
            return error
        counts = self.counts
        counts.adds += 1
        counts.added_bytes += len(packed)
        if last_confirmed > held.last_confirmed:
            held.last_confirmed = last_confirmed
            self._waits.heard(ledger, last_confirmed)
        return None

    def _first_add(
        self, ledger: int, entry: int, packed: Buffer, master_key: bytes
    ) -> LedgerDescriptor:
        note = LedgerNote(master_key=_checked_key(master_key))
        held = LedgerDescriptor(ledger, note)
        run = Run(ledger, entry, held.index.next_arrival, 1, packed)
        self._log.write((SetState(ledger, encode_note(note)), run))
        held.index.add(entry)
        self._ledgers[ledger] = held
        return held

    def when_durable(self, done: Callable[[], None]) -> None:
        """Calls `done` once all written data are durable, never within this call."""
        self._log.when_durable(done)

    async def fence(self, ledger: int, master_key: bytes) -> None:
        """Durably refuses the ledger's writer from now on.

        A ledger that the bookie knows nothing of is fenced too: the bookie counts as one that lacks
        the entry, and the old writer's first add may be on its way here. Durable before the answer:
        a recovery that counts this bookie must be able to rely on it after a power cut.
        """
        held = self._ledgers.get(ledger)
        if held is None or not held.note.is_fenced:
            self._note(ledger, master_key, is_fenced=True)
            self.counts.fences += 1
        elif (refusal := held.refusal(master_key)) is not None:
            raise refusal
        await self._log.sync()

    async def write_last_confirmed(
        self, ledger: int, last_confirmed: int, master_key: bytes
    ) -> None:
        """Publishes how far readers may read; a smaller number than the last changes nothing.

        Synced before the answer: the writer acks on it, and what readers saw must not go back after
        a restart (docs/decisions/0031).
        """
        if not -1 <= last_confirmed < ENTRY_MAX:
            raise InvalidInput(f"{last_confirmed} is no entry's number")
        held = self._ledgers.get(ledger)
        if held is not None and (refusal := held.refusal(master_key)) is not None:
            raise refusal
        if held is None or last_confirmed > held.note.published:
            held = self._note(ledger, master_key, published=last_confirmed)
            if last_confirmed > held.last_confirmed:
                held.last_confirmed = last_confirmed
                self._waits.heard(ledger, last_confirmed)
        await self._log.sync()

    def _note(self, ledger: int, master_key: bytes, **changes: bool | int) -> LedgerDescriptor:
        """Changes the durable state of a ledger beside its entries."""
        if not 0 <= ledger < LEDGER_MAX:
            raise InvalidInput(f"{ledger} is no ledger's number: give 0 to 2^63-2")
        held = self._ledgers.get(ledger)
        if held is None:
            held = LedgerDescriptor(ledger, LedgerNote(master_key=_checked_key(master_key)))
        elif (refusal := held.refusal(master_key)) is not None:
            raise refusal
        note = replace(held.note, **changes)
        try:
            self._log.write((SetState(ledger, encode_note(note)),))
        except (DiskFull, StoreError) as error:
            raise self._cannot_write(error) from error
        held.note = note
        self._ledgers[ledger] = held
        return held

    def drop(self, ledgers: Iterable[int]) -> None:
        """Forgets deleted ledgers; their room is freed in the background."""
        for ledger in ledgers:
            if self._ledgers.pop(ledger, None) is not None:
                self._log.write((DropGroup(ledger),))

    def _cannot_write(self, error: RaftwoodError) -> RaftwoodError:
        if isinstance(error, StoreError) and self._damage is None:
            self._damage = error
            _log.error("the bookie takes no more entries", bookie=self.id, reason=error.message)
        return BookieReadOnly(f"bookie {self.id} takes no entries now: {error.message}")

    # Reading.

    def read_cached(self, ledger: int, entry: int) -> Buffer | None:
        """Like `read`, at once; None if the disk must be read."""
        arrival = self._arrival_of(ledger, entry)
        runs = self._log.read_cached(ledger, arrival, bytes_max=0)
        return None if runs is None else self._counted(runs[0].payload)

    async def read(self, ledger: int, entry: int) -> Buffer:
        """Returns the packed entry, or with −1 the one with the highest number.

        `NoSuchLedger`, `NoSuchEntry`; `BadDigest` if the entry is damaged; `EntryUnknown` if it may
        have been here before the bookie began anew.
        """
        arrival = self._arrival_of(ledger, entry)
        try:
            runs = await self._log.read(ledger, arrival, bytes_max=0)
        except NotFound as error:  # The ledger was dropped meanwhile.
            raise NoSuchLedger(f"bookie {self.id} has nothing of ledger {ledger}") from error
        except StoreDamaged as error:
            self.counts.damaged += 1
            _log.error("an entry is damaged", bookie=self.id, ledger=ledger, entry=entry)
            raise BadDigest(
                f"bookie {self.id}: entry {entry} of ledger {ledger} is damaged: {error.message}"
            ) from error
        return self._counted(runs[0].payload)

    def _counted(self, packed: Buffer) -> Buffer:
        self.counts.reads += 1
        self.counts.read_bytes += len(packed)
        return packed

    async def read_last_confirmed(self, ledger: int) -> tuple[int, Buffer]:
        """Returns the published last confirmed entry (−1: none), and the packed entry with the
        highest number (empty: none).
        """
        held = self._ledgers.get(ledger)
        doubt = self._limbo.doubt(ledger, -1)
        if doubt is not None:
            raise doubt
        if held is None:
            return -1, b""
        highest = await self.read(ledger, -1) if len(held.index) else b""
        return held.note.published, highest

    async def wait_last_confirmed(self, ledger: int, *, after: int, timeout_ms: int) -> int:
        """Waits until a last confirmed entry above `after` is known, or the time is over; returns
        the highest known one. Also waits for a ledger that has no entries here yet.
        """
        held = self._ledgers.get(ledger)
        if held is not None and held.last_confirmed <= after and len(held.index):
            # After a restart the number is not in memory yet: the newest entry's head has it. A
            # tail would otherwise wait although there is more to read.
            head = HEAD.unpack_from(await self.read(ledger, -1))
            held.last_confirmed = max(held.last_confirmed, head[2])
        if held is None or held.last_confirmed <= after:
            await self._waits.wait(ledger, after=after, timeout_ms=timeout_ms)
        held = self._ledgers.get(ledger)
        return -1 if held is None else held.last_confirmed

    def _arrival_of(self, ledger: int, entry: int) -> int:
        held = self._ledgers.get(ledger)
        # The highest entry is in doubt even where some entries were copied back.
        if held is None or entry == -1 or not held.index.arrival_of(entry):
            doubt = self._limbo.doubt(ledger, entry)
            if doubt is not None:
                raise doubt
        return self._known(ledger).arrival_of(entry)

    def _known(self, ledger: int) -> LedgerDescriptor:
        held = self._ledgers.get(ledger)
        if held is None:
            raise NoSuchLedger(f"bookie {self.id} has nothing of ledger {ledger}")
        return held

    async def close(self) -> None:
        """Makes all data durable and stops; ends all waits."""
        self._waits.close()
        await asyncio.shield(self._store.close())


async def _check_owner(store: Store, id_: BookieId) -> None:
    """Refuses another bookie's folder; makes a new one this bookie's."""
    owner, _ = _owner_of(store)
    if not owner:
        await store.log.commit(SetState(_OWN_GROUP, id_.encode()))
    elif owner != id_:
        raise InvalidInput(
            f"{store.path} is the folder of bookie {owner}, not of {id_}: set bookie.advertise to "
            "that id, or give another bookie.data_folder"
        )


def _owner_of(store: Store) -> tuple[str, list[int]]:
    """The id of the folder's bookie (empty for a new folder), and the numbers of its limbo."""
    log = store.log
    state = log.state(_OWN_GROUP) if _OWN_GROUP in log.groups() else None
    owner, *numbers = (state or b"").split(b"\0")
    if len(numbers) not in (0, 2) or not all(each.isdigit() for each in numbers):
        raise StoreDamaged(f"what {store.path} says of its bookie cannot be read")
    return owner.decode(errors="replace"), [int(each) for each in numbers]


def _remedy(bookie: str) -> str:
    """What an operator can do with a bookie whose entries are gone or damaged.

    An old copy of the folder is no remedy: that bookie would deny all that it acked since the copy,
    and nothing would show it.
    """
    return (
        f"Bookie {bookie} does not serve, so that it denies nothing that it has acked. Start it "
        f"with --begin-anew and a new folder, then run `raftwood bookie repair {bookie}`, which "
        "copies its entries from other bookies"
    )


def _checked_key(master_key: bytes) -> bytes:
    if len(master_key) > MASTER_KEY_BYTES_MAX:
        raise InvalidInput(f"a master key has up to {MASTER_KEY_BYTES_MAX} bytes")
    return master_key


def _id(owner: bytes) -> str:
    """The bookie's id, without the numbers stored behind it."""
    return owner.partition(b"\0")[0].decode(errors="replace")


def _repair_remedy(name: str) -> str:
    id_ = name.removeprefix("bookie ") if name.startswith("bookie ") else "ID"
    return (
        "start the bookie with --begin-anew and a new, empty folder, then run 'raftwood bookie "
        f"repair {id_}', which copies its entries from other bookies"
    )


async def check_bookie(_: Environment, content: FolderContent) -> Findings:
    """Checks that each ledger has its key, and the folder the bookie's id."""
    owner = content.state(LEDGER_MAX)  # no ledger's group: its state is the bookie's id
    name = "a bookie" if owner is None else f"bookie {_id(owner)}"
    found = Findings(role=name, remedy=_repair_remedy(name))
    ledgers = [group for group in sorted(content.groups) if group != LEDGER_MAX]
    if owner is None and ledgers:
        found.damages.append(
            Damage(content.log_path, None, "the bookie's id is missing from the log")
        )
    for ledger in ledgers:
        state = content.state(ledger)
        try:
            if state is None:
                raise StoreDamaged(f"ledger {ledger} has entries and no key")
            decode_note(state, ledger=ledger)
        except StoreDamaged as error:
            found.damages.append(Damage(content.log_path, None, error.message))
    found.checked = f"{len(ledgers)} ledgers"
    return found
