"""A store whose log is damaged at a start: the log is set aside, and its peers fill a new one.

The store keeps its number and its incarnation. The readable records of the damaged log name the
groups that it had, and a term and vote of each that may be old. One new log is built of these
records and of a note that says what happened (`StoreRegistry.damage`). Then one replaced file puts
it in the place of the damaged one (`DataFolder.use_next_log`): a crash before that begins again,
and the damaged log stays as it is, for an operator. Decision 0034 says why.

No group has a replica then. Each goes through the repair of `repair`: the group removes the store,
adds it as a learner, fills it, and makes it a voter if it was one. Until it has applied the
addition, the store neither votes nor stands nor counts in a quorum.

A group may have lost all of its records here, so that it looks new. While the note stands, and it
stands for good, a group without a record is not begun as a new one:

- For one that is founded, the store asks the other founders. If one of them has more of it than its
  founding, the group was lost here, and is repaired. If none has, nobody was ever elected in it,
  nothing was committed, and it is founded. This costs one question to each founder, once for each
  group.
- One that is joined waits until the group names the store as a member. Then it is repaired: it may
  have been a voter before. This costs one removal and one addition.
- One that this store founds alone is refused: nobody else could know it.

So the note may stand for good, also on all stores of a cluster. A snapshot proves its group as a
record does. If all members of a group have lost all records of it, and it had no snapshot yet, no
store knows any more that it existed.

Why nothing is lost although the store may have forgotten its term, its vote and what it
acknowledged. Let S be the store, and R the change that the repair asks for after the loss: the
removal of S, or its addition where S was no member any more. R is committed in some term t, and S
has acknowledged nothing of it.

1. Whoever is elected in a term above t stands after the loss. Take the first such leader Y, and the
   majority that elected it. It shares a voter Z other than S with those who committed R. For the
   removal, both are majorities of voters that S is one of, and S did not acknowledge R. For the
   addition, or where S was a learner: of n voters with S, those who elect are at least n/2 without
   S, rounded down, and those who commit R are more than half of the n-1 others; that is n together.
   In a joint configuration this holds for each half. Z acknowledged R in term t, so it voted for Y
   later, and Y's log was at least as new as one with R. There is no entry of a term between, for Y
   is the first. So Y's log had R, which was proposed after the loss. For the leaders after Y the
   same holds: their logs have R, or an entry of Y or of one after it.
2. So a vote that S gave before the loss elected nobody above t, and S acknowledged nothing above t.
   Each leader up to the one of R was elected with a vote of S while S had its log, or without S: it
   has all that was committed, as always in raft.
3. S may vote a second time in a term. In a term up to that of the addition it does not: its log
   has the addition by then, and who stands in such a term has an older log. In a later term, the
   one who got the first vote stood before the loss, and is never elected.

A group of two cannot commit a removal without S, and one that has lost its quorum otherwise can
neither: its replica here stays halted, and its status names the command that helps.

Tests: test_damaged_log::
test_what_two_stores_acked_survives_the_damage_of_one_whichever_starts_first, and
test_damaged_log::test_a_store_that_takes_part_before_it_has_learnt_is_caught, which plants the bug
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Final

import msgspec

from raftwood.base import files as seam
from raftwood.base.environment import Environment
from raftwood.base.errors import StoreDamaged
from raftwood.base.files import perform
from raftwood.base.logs import get_logger
from raftwood.disk.segment_log import LogSettings, SegmentLog, SetState
from raftwood.disk.segment_log.format import KIND_RUN, KIND_STATE, RECORD_HEADER_BYTES
from raftwood.disk.segment_log.recovery import inspect
from raftwood.disk.segment_log.scan import ScannedRecord
from raftwood.disk.store import LOGS_ASIDE_MAX, DataFolder, Store
from raftwood.raft.group_log import VOTES_NEVER, GroupState, RepairStage, decode_state, first_state
from raftwood.raft.registry import GROUP_MAX, HOST_GROUP, how_to_replace, registry_after_damage
from raftwood.raft.settings import RaftHostSettings
from raftwood.raft.snapshot_files import snapshot_key

_NO_PEERS: Final = (
    "this store knows no other store that could fill it: restore its data folder from a backup"
)
_DAMAGE_CHARACTERS_MAX: Final = 1_000

_log = get_logger("raft")


async def open_store(
    environment: Environment,
    path: str,
    *,
    cluster: str,
    store: int,
    settings: RaftHostSettings,
    log_settings: LogSettings,
    peers: Mapping[int, str],
) -> Store:
    """Like `Store.open`; sets a damaged log aside if there are peers to fill a new one."""
    replacement = _LogReplacement(environment, log_settings, peers, is_allowed=settings.repair_log)
    try:
        return await Store.open(
            environment,
            path,
            cluster=cluster,
            store=store,
            settings=log_settings,
            replace_log=replacement.begin_new_log,
        )
    except StoreDamaged as error:
        if replacement.was_asked:
            raise
        # The folder's identity: without it, nothing shows that this is the folder the others know.
        raise StoreDamaged(f"{error.message}, or {how_to_replace(store)}") from error


class _LogReplacement:
    """Puts a new log in the place of a damaged one."""

    def __init__(
        self,
        environment: Environment,
        log_settings: LogSettings,
        peers: Mapping[int, str],
        *,
        is_allowed: bool,
    ) -> None:
        """`peers` are the stores that the settings name, and their addresses."""
        self._environment = environment
        self._log_settings = log_settings
        self._peers = peers
        self._is_allowed = is_allowed
        self.was_asked = False

    async def begin_new_log(self, folder: DataFolder, error: StoreDamaged) -> None:
        """Build the new log, or raise the error for the operator; the folder is locked."""
        self.was_asked = True
        if not self._is_allowed:
            raise StoreDamaged(
                f"{error.message}; set raft.repair_log=true to let the other stores fill a new "
                f"log, or {how_to_replace(folder.identity.store)}"
            ) from error
        salvage = await _read_what_is_left(self._environment, folder)
        damage = error.message[:_DAMAGE_CHARACTERS_MAX]
        addresses, book = registry_after_damage(salvage.book, peers=self._peers, damage=damage)
        own = folder.identity.store
        if not any(store != own for store in addresses):
            raise StoreDamaged(f"{error.message}; {_NO_PEERS}") from error
        aside = await folder.logs_aside()
        if len(aside) >= LOGS_ASIDE_MAX:
            raise StoreDamaged(
                f"{error.message}; {' and '.join(aside)} were damaged before: check the disk, "
                "remove these folders, and start the store again"
            ) from error
        states = [SetState(HOST_GROUP, book), *salvage.states()]
        await self._build(folder.next_log_path(), states)
        await folder.use_next_log()
        _log.error(
            "the log is damaged and set aside, and the other stores fill a new one",
            folder=folder.path,
            groups=len(states) - 1,
            reason=error.message,
        )

    async def _build(self, path: str, states: list[SetState]) -> None:
        files = self._environment.files
        (names,) = await perform(files, seam.ListDirectory(path))  # of one that was interrupted
        if names:
            left = [seam.Unlink(f"{path}/{name}") for name in names]
            await perform(files, *left, seam.SyncDirectory(path))
        log = await SegmentLog.open(self._environment, path, self._log_settings)
        try:
            for part in _parts(states, log.write_bytes_max):
                await log.commit(*part)
        finally:
            await log.close()


class _Salvage:
    """The state of each group by the intact records of a log, with gaps between them."""

    def __init__(self) -> None:
        self.book: bytes | None = None
        self._groups: dict[int, GroupState] = {}

    def take(self, record: ScannedRecord) -> None:
        if record.group == HOST_GROUP and record.kind == KIND_STATE:
            self.book = bytes(record.payload)
        elif record.group <= GROUP_MAX and record.kind in (KIND_STATE, KIND_RUN):
            known = self._groups.get(record.group, first_state())
            self._groups[record.group] = _merged(known, record)

    def take_snapshots(self, names: Iterable[str]) -> None:
        """Counts a group with a snapshot as one of this store's, even without any record of it.

        Without this, a group whose members all lost all records would be founded anew, empty.
        """
        for key in filter(None, map(snapshot_key, names)):
            self._groups.setdefault(key[0], first_state())

    def states(self) -> Iterator[SetState]:
        for group, last in sorted(self._groups.items()):
            stage = RepairStage.LOOK
            if last.repair in (RepairStage.LEAVE, RepairStage.JOIN):
                stage = RepairStage.LEAVE  # it may have been added since
            if last.is_removed:
                stage = RepairStage.NONE
            state = msgspec.structs.replace(
                first_state(),
                term=last.term,
                vote=last.vote,
                is_removed=last.is_removed,
                votes_from=last.votes_from if last.is_removed else VOTES_NEVER,
                repair=stage,
                repair_as_voter=last.repair_as_voter,
            )
            yield SetState(group, state.encoded())


def _merged(known: GroupState, record: ScannedRecord) -> GroupState:
    """The highest term, and the vote in it; all else as in the last record."""
    if record.kind == KIND_RUN:
        if record.term <= known.term:
            return known
        return msgspec.structs.replace(known, term=record.term, vote=0)
    told = decode_state(record.group, bytes(record.payload))
    newer = told if (told.term, bool(told.vote)) >= (known.term, bool(known.vote)) else known
    return msgspec.structs.replace(
        told,
        term=newer.term,
        vote=newer.vote,
        votes_from=max(known.votes_from, told.votes_from),
    )


async def _read_what_is_left(environment: Environment, folder: DataFolder) -> _Salvage:
    salvage = _Salvage()
    await inspect(environment.files, folder.log_path, salvage.take)
    path = f"{folder.path}/snapshots"
    (names,) = await perform(environment.files, seam.ListDirectory(path))
    salvage.take_snapshots(names or [])
    return salvage


def _parts(states: list[SetState], bytes_max: int) -> Iterator[list[SetState]]:
    """Splits states into parts that fit a write; the log is not in use before all are written."""
    part: list[SetState] = []
    size = 0
    for state in states:
        record_bytes = RECORD_HEADER_BYTES + len(state.data)
        if part and size + record_bytes > bytes_max:
            yield part
            part, size = [], 0
        part.append(state)
        size += record_bytes
    yield part
