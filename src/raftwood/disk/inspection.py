"""Inspects a data folder without changing it, for `raftwood store check` and `dump`.

`check_store` verifies what every folder has: identity, log, and the list of files. Only the role
that wrote the log's records knows what they refer to (snapshots, engines): it adds a `RoleCheck`,
which gets the `FolderContent` and answers `Findings`.
"""

import posixpath
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from typing import Final

import msgspec

from raftwood.base import files as seam
from raftwood.base.environment import Environment
from raftwood.base.errors import InvalidInput, NotFound, StoreDamaged
from raftwood.base.files import Files, explained, perform
from raftwood.disk.segment_log.format import (
    KIND_DROP,
    KIND_HEAD,
    KIND_RUN,
    KIND_STATE,
    KIND_TAIL,
)
from raftwood.disk.segment_log.horizon import NAME as HORIZON
from raftwood.disk.segment_log.horizon import has_lost_slot
from raftwood.disk.segment_log.index import GroupIndex
from raftwood.disk.segment_log.recovery import Damage, Inspection, inspect
from raftwood.disk.segment_log.scan import IndexBuilder, ScannedRecord
from raftwood.disk.segment_log.segments import segment_number
from raftwood.disk.store import IN_USE, DataFolder, FolderIdentity, is_log_name, log_number

KIND_NAMES = {
    KIND_RUN: "run",
    KIND_STATE: "state",
    KIND_HEAD: "truncate-head",
    KIND_TAIL: "truncate-tail",
    KIND_DROP: "drop-group",
}
FOLDERS_DEEP_MAX: Final = 2
"""How far below a folder stores are searched for."""
FOLDERS_MAX: Final = 65_536
"""The most files and folders searched on each of these levels."""
_OWN_NAMES: Final = ("IDENTITY", "LOCK")


class GroupReport(msgspec.Struct, frozen=True):
    """The log's content of one group."""

    group: int
    head: int
    next_index: int
    runs: int
    state_bytes: int


class FolderContent(msgspec.Struct, frozen=True):
    """The input of a role's check."""

    path: str
    identity: FolderIdentity | None
    """None if it cannot be read."""
    log_path: str
    names: list[str]
    """The names of the files and folders in it."""
    groups: dict[int, GroupIndex]
    """The groups of the log; empty if it is damaged beyond use."""

    def state(self, group: int) -> bytes | None:
        index = self.groups.get(group)
        return None if index is None else index.state


class Findings(msgspec.Struct):
    """A role's findings about its folder."""

    role: str
    """The role in words: "raft store 3"."""
    remedy: str
    """The operator's remedy if something is damaged."""
    names: tuple[str, ...] = ()
    """Files and folders that the role keeps beside the log."""
    checked: str = ""
    """What was checked beside the log, in words: "2 snapshots"."""
    damages: list[Damage] = msgspec.field(default_factory=list)
    left_over: list[str] = msgspec.field(default_factory=list)
    """Paths that nothing refers to, which is no damage."""


RoleCheck = Callable[[Environment, FolderContent], Awaitable[Findings]]
RoleOf = Callable[[FolderContent], RoleCheck]
REMEDY: Final = "restore the folder from a backup"


class StoreReport(msgspec.Struct, frozen=True):
    """The state of a data folder."""

    path: str
    identity: FolderIdentity | None
    segments: int
    log_bytes: int
    flushes: int
    records: int
    live_bytes: int
    groups: list[GroupReport]
    damages: list[Damage]
    role: str
    remedy: str
    checked: str
    left_over: list[str]
    notes: list[str]
    """Files that have changed unexpectedly, and that the next start writes anew."""

    @property
    def is_intact(self) -> bool:
        return not self.damages


async def plain_store(_: Environment, content: FolderContent) -> Findings:
    """Checks a log of an unknown role, and nothing beside it."""
    return Findings(role=name_of(content.identity), remedy=REMEDY, names=tuple(content.names))


def name_of(identity: FolderIdentity | None) -> str:
    if identity is None:
        return "a store that cannot tell its name"
    return f"store {identity.store} of cluster {identity.cluster}"


def _any_role(_: FolderContent) -> RoleCheck:
    return plain_store


async def check_store(
    environment: Environment, path: str, role_of: RoleOf = _any_role
) -> StoreReport:
    """Reads and verifies everything in a folder that no process uses.

    `NotFound` if the folder is no store's, `StoreLocked` if a process uses it.
    """
    path = path.rstrip("/") or "/"
    files = environment.files
    with explained(path):
        names = await _names(files, path)
        if not await _is_store(files, path, names):
            raise NotFound(f"there is no Raftwood store in {path}: give the path of a data folder")
        damages: list[Damage] = []
        folder: DataFolder | None = None
        try:
            folder = await DataFolder.open_existing(environment, path)
        except (NotFound, StoreDamaged) as error:
            reason = "it is missing" if isinstance(error, NotFound) else error.message
            damages.append(Damage(f"{path}/IDENTITY", None, reason))
        try:
            return await _check(environment, path, names, folder, damages, role_of)
        finally:
            if folder is not None:
                await folder.close()


async def _check(
    environment: Environment,
    path: str,
    names: list[str],
    folder: DataFolder | None,
    damages: list[Damage],
    role_of: RoleOf,
) -> StoreReport:
    replay = IndexBuilder()
    records = 0

    def take(record: ScannedRecord) -> None:
        nonlocal records
        records += 1
        replay.apply(record)

    identity = None if folder is None else folder.identity
    log_path = f"{path}/{_newest_log(names)}" if folder is None else folder.log_path
    found = await inspect(environment.files, log_path, take)
    damages += found.damages
    index: dict[int, GroupIndex] = {}
    live_bytes = 0
    try:
        index, live = replay.finish()
        live_bytes = live.total
    except StoreDamaged as error:
        damages.append(Damage(log_path, None, error.message))
    content = FolderContent(path, identity, log_path, names, index)
    findings = await role_of(content)(environment, content)
    notes: list[str] = []
    if folder is not None and folder.has_older_identity:
        notes.append(f"{path}/IDENTITY: it is an older copy: {log_path} took another log's place")
    if await has_lost_slot(environment.files, log_path):
        notes.append(f"{log_path}/{HORIZON}: one of its two slots is bad, and the other is whole")
    return StoreReport(
        path=path,
        identity=identity,
        segments=len(found.used_bytes),
        log_bytes=sum(found.used_bytes.values()),
        flushes=found.flush_count,
        records=records,
        live_bytes=live_bytes,
        groups=[
            GroupReport(n, g.head, g.next_index, g.run_count, len(g.state or b""))
            for n, g in sorted(index.items())
        ],
        damages=[*damages, *findings.damages],
        role=findings.role,
        remedy=findings.remedy,
        checked=findings.checked,
        left_over=[*_left_over(content, found, findings.names), *findings.left_over],
        notes=notes,
    )


def _newest_log(names: list[str]) -> str:
    """The folder of the log in use, guessed from the names: IDENTITY cannot be read."""
    return max((name for name in names if is_log_name(name)), key=log_number, default="log")


def _left_over(content: FolderContent, found: Inspection, of_role: Iterable[str]) -> list[str]:
    """Paths that nothing refers to: a crash leaves some that the next start removes, and a damaged
    log that was replaced stays until an operator removes it.
    """
    known = (*_OWN_NAMES, posixpath.basename(content.log_path), *of_role)
    paths = [f"{content.path}/{name}" for name in content.names if name not in known]
    for name in found.names:
        number = segment_number(name)
        if name not in (HORIZON, IN_USE) and (number is None or number < found.oldest):
            paths.append(f"{content.log_path}/{name}")
    return paths


async def visit_records(
    environment: Environment, path: str, visit: Callable[[ScannedRecord], None]
) -> list[Damage]:
    """Passes every intact record to `visit`, in log order; returns the damages."""
    folder = await DataFolder.open_existing(environment, path)
    try:
        with explained(path):
            return (await inspect(environment.files, folder.log_path, visit)).damages
    finally:
        await folder.close()


async def find_stores(environment: Environment, path: str) -> list[str]:
    """Returns the data folders at a path: itself, or those up to two folders below it.

    The folders of a standalone, a spool and a local cluster hold several. `NotFound` if there is
    none.
    """
    path = path.rstrip("/") or "/"
    found: list[str] = []
    with explained(path):
        level = [path]
        for _ in range(FOLDERS_DEEP_MAX + 1):
            below: list[str] = []
            if len(level) > FOLDERS_MAX:
                raise InvalidInput(
                    f"{path} holds more than {FOLDERS_MAX} files and folders: name one of the "
                    "folders in it"
                )
            for folder in level:
                names: list[str] = []
                with suppress(PermissionError):  # a folder below that others may not read
                    names = await _names(environment.files, folder)
                if await _is_store(environment.files, folder, names):
                    found.append(folder)
                else:
                    below += [f"{folder}/{name}" for name in names]
            level = below
    if not found:
        raise NotFound(f"there is no Raftwood store in {path}: give the path of a data folder")
    return sorted(found)


async def _names(files: Files, path: str) -> list[str]:
    """Returns the names in a folder; an empty list for a file."""
    with suppress(NotADirectoryError):
        (names,) = await perform(files, seam.ListDirectory(path))
        return names or []
    return []


async def _is_store(files: Files, path: str, names: list[str]) -> bool:
    """Whether a folder is a store's; one with a log and no identity is a damaged store."""
    if "IDENTITY" in names:
        return "CURRENT" not in names  # RocksDB's folders have an IDENTITY as well
    for log in filter(is_log_name, names):
        if any(segment_number(name) is not None for name in await _names(files, f"{path}/{log}")):
            return True
    return False
