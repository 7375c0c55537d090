"""Bugs planted in the tailer: each must be caught, or the world proves nothing."""

import asyncio
from typing import Any

from msgspec.structs import replace

from raftwood.clogs.tail import reader, rules
from raftwood.clogs.tail import reader as reader_module
from raftwood.clogs.tail.checkpoints import FileCheckpoint, FileCheckpoints
from raftwood.clogs.tail.followed_file import FollowedFile
from raftwood.clogs.tail.lanes import _Lane, _Place
from raftwood.clogs.tail.reader import FileReader, IntendedBatch, ReadyBatch
from raftwood.clogs.tail.rules import Action, CheckFile, CloseFile, FileVerdict, Roster
from raftwood.clogs.tail.watch import PathsToVisit
from tests.kits.clogs.tail.tail_world import run_watched, run_with_other_rules, run_world
from tests.kits.models import Mutant, replaced, together

_begin = FileCheckpoints.begin
_make = FileReader.make
_save = FileCheckpoints.save
_load = FileCheckpoints.load
_checkpoint = FollowedFile.checkpoint
_judged = rules.judged


def _save_without_a_wait(
    checkpoints: FileCheckpoints, number: int, checkpoint: FileCheckpoint
) -> asyncio.Event:
    _save(checkpoints, number, checkpoint)
    durable = asyncio.Event()
    durable.set()
    return durable


def _checkpoint_behind_the_intent(file: FollowedFile, **given: Any) -> FileCheckpoint:
    made = _checkpoint(file, **given)
    intent = given.get("intent")
    if intent is None:
        return made
    return replace(made, offset=intent.end, intents=())


def _judged_the_same(file: FollowedFile, look: Any, *, is_held: bool) -> FileVerdict:
    verdict = _judged(file, look, is_held=is_held)
    return verdict if verdict is FileVerdict.ELSEWHERE else FileVerdict.SAME


def _settle_at_once(_: Roster, file: FollowedFile, *, now_ms: int, **__: bool) -> list[CloseFile]:
    if file.left_ms is None or file.rested_ms is not None or file.intents:
        return []
    file.rested_ms = now_ms
    return [CloseFile(file)]


def _all_at_once(roster: Roster, name: str) -> list[FollowedFile]:
    files = [file for file in roster.of_name(name) if file.rested_ms is None]
    return sorted(files, key=lambda file: file.left_ms is not None)


def _load_without_intents(checkpoints: FileCheckpoints) -> dict[int, FileCheckpoint]:
    """All intents are forgotten at a start, so that their bytes go under other names."""
    return {number: replace(each, intents=()) for number, each in _load(checkpoints).items()}


async def _made_by_present_rules(files: FileReader, intended: IntendedBatch) -> ReadyBatch:
    """A batch in doubt is made by whatever rules hold by now."""
    intent = replace(intended.intent, rules=files._maker.rules)
    ready = await _make(files, replace(intended, intent=intent))
    return replace(ready, intent=intended.intent)


async def _begin_without_rules(checkpoints: FileCheckpoints, first: Any, _: object) -> None:
    await _begin(checkpoints, first, ())


def _name_without_origin(noticed: PathsToVisit, path: str, _: str = "") -> None:
    noticed.named[path] = ""


def _name_in_any_order(noticed: PathsToVisit, path: str, origin: str = "") -> None:
    noticed.named.setdefault(path, origin)


def _take_named_and_all_else(noticed: PathsToVisit) -> dict[str, str]:
    taken, noticed.named = noticed.named, {}
    noticed.written.clear()
    return taken


def _noticed_unchecked(roster: Roster, *given: Any, **more: Any) -> list[Action]:
    return [each for each in _noticed(roster, *given, **more) if not isinstance(each, CheckFile)]


_noticed = Roster.noticed


async def _no_turn(_: _Lane, __: _Place) -> None:
    return


MUTANTS = {
    "an inode that is used again is taken for what it was": Mutant(
        run_watched, replaced(Roster, noticed=_noticed_unchecked)
    ),
    "a batch that overtakes the one before it when both failed": Mutant(
        run_world, replaced(_Lane, turn=_no_turn)
    ),
    "a move whose origin is forgotten": Mutant(
        run_watched, replaced(PathsToVisit, _name=_name_without_origin)
    ),
    "a successor that is visited first": Mutant(
        run_watched, replaced(PathsToVisit, _name=_name_in_any_order)
    ),
    "writes that are forgotten when something is renamed": Mutant(
        run_watched, replaced(PathsToVisit, take_named=_take_named_and_all_else)
    ),
    "a batch in doubt that is made by other rules": Mutant(
        run_with_other_rules, replaced(FileReader, make=_made_by_present_rules)
    ),
    "rules that are not noted": Mutant(
        run_with_other_rules, replaced(FileCheckpoints, begin=_begin_without_rules)
    ),
    "an intent that is not awaited": Mutant(
        run_world, replaced(FileCheckpoints, save=_save_without_a_wait)
    ),
    "an offset that moves before the ack": Mutant(
        run_world, replaced(FollowedFile, checkpoint=_checkpoint_behind_the_intent)
    ),
    "an inode that is used again unnoticed": Mutant(
        run_world,
        together(
            replaced(reader_module, judged=_judged_the_same),
            replaced(reader, judged=_judged_the_same),
        ),
    ),
    "a rotated file that is dropped early": Mutant(
        run_world, replaced(Roster, settle=_settle_at_once)
    ),
    "a successor that does not wait": Mutant(run_world, replaced(Roster, turn=_all_at_once)),
    "a resumed batch under a new name": Mutant(
        run_world, replaced(FileCheckpoints, load=_load_without_intents)
    ),
}
