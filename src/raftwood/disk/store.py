"""`Store`: a locked data folder with its log open, the unit that one process runs on.

    LOCK          held while a process uses the folder
    IDENTITY      one line: format and version, cluster, store, incarnation, checksum
    log/          the segment log
    log-2/        the log that took its place, where IDENTITY names it; log/ is kept for an operator
    log-2/IN-USE  says so too: IDENTITY may be an older copy that does not know

The incarnation is drawn when the folder is made: a store whose disk was wiped gets another one, and
can't vote again under an identity that has forgotten its votes. For the same reason a folder that
once held a log and has none now is damaged, not new. Taken for new, it would vote twice in a term,
and elect a leader that lacks what it acknowledged.
Test: tests/unit/disk/test_folder::
test_a_store_that_lost_its_log_or_its_identity_is_damaged_not_new
"""

import asyncio
import posixpath
import re
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import Final

import msgspec
from xxhash import xxh3_64_hexdigest

from raftwood.base import files as seam
from raftwood.base.environment import Environment
from raftwood.base.errors import (
    InvalidInput,
    NotFound,
    StoreDamaged,
    StoreLocked,
)
from raftwood.base.files import Buffer, Files, explained, perform
from raftwood.base.names import checked_name
from raftwood.base.versions import unsupported
from raftwood.disk.segment_log import LogSettings, SegmentLog

FORMAT: Final = "raftwood-store"
VERSION: Final = 1
_IDENTITY_BYTES_MAX: Final = 4096
_FIRST_LOG: Final = "log"
_LOG_NAME: Final = re.compile(r"log(-[1-9][0-9]{0,8})?")
IN_USE: Final = "IN-USE"
"""A file in each log but the first, made before the log is used."""
LOGS_ASIDE_MAX: Final = 2
"""Damaged logs that are kept; before the next one, an operator has to look at the disk."""


class FolderIdentity(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The store and cluster to which a folder belongs."""

    cluster: str
    store: int
    incarnation: str
    initialised: bool = False
    """Whether a log was created in the folder: from then on a missing log is damage."""
    log: str = _FIRST_LOG
    """The folder of the log; another one once a damaged log was set aside."""


class _Stamp(msgspec.Struct, frozen=True):
    format: str
    version: int
    identity: msgspec.Raw
    checksum: str


def encode_identity(identity: FolderIdentity) -> bytes:
    fields = msgspec.structs.asdict(identity)
    if identity.log == _FIRST_LOG:
        del fields["log"]  # release 0.1.0 knows no such field
    body = msgspec.json.encode(fields)
    stamp = _Stamp(FORMAT, VERSION, msgspec.Raw(body), xxh3_64_hexdigest(body))
    return msgspec.json.encode(stamp) + b"\n"


def decode_identity(data: Buffer, *, path: str) -> FolderIdentity:
    """Decodes the identity in a stamp; `path` is for the error's text."""
    try:
        stamp = msgspec.json.decode(data, type=_Stamp)
        if stamp.format != FORMAT:
            raise StoreDamaged(f"{path} is not the stamp of a Raftwood store: {_REMEDY}")
        if stamp.version > VERSION:
            raise unsupported(path, stamp.version, VERSION)
        if stamp.version < 1 or stamp.checksum != xxh3_64_hexdigest(bytes(stamp.identity)):
            raise StoreDamaged(f"{path} does not match its checksum: {_REMEDY}")
        identity = msgspec.json.decode(stamp.identity, type=FolderIdentity)
        if _LOG_NAME.fullmatch(identity.log) is None:
            raise StoreDamaged(f"{path} names no folder of a log: {_REMEDY}")
        return identity
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise StoreDamaged(f"{path} cannot be read ({error}): {_REMEDY}") from None


_REMEDY: Final = "restore the file from a backup"
"""The owner of the folder adds its own remedies."""


class DataFolder:
    """An open, locked data folder; use `open`, and `close` when done."""

    def __init__(self, files: Files, path: str, identity: FolderIdentity) -> None:
        self._files = files
        self.path = path
        self.identity = identity
        self.has_older_identity = False
        """Whether the file is a copy from before the log in use was made."""

    @property
    def log_path(self) -> str:
        return f"{self.path}/{self.identity.log}"

    @classmethod
    async def open(
        cls, environment: Environment, path: str, *, cluster: str, store: int
    ) -> "DataFolder":
        """Opens the store's folder, creating it if there is none.

        `StoreLocked` if another process uses it, `InvalidInput` if it belongs to another store,
        `StoreDamaged` or `UnsupportedVersion` if it can't be used. `check_log` checks that its log
        is there.
        """
        checked_name("cluster", cluster)
        files = environment.files
        path = path.rstrip("/") or "/"
        with explained(path):
            await _make(files, path)
            await _lock(files, path)
            try:
                identity = await _load(files, path)
                if identity is None:
                    incarnation = environment.random.randbytes(8).hex()
                    identity = FolderIdentity(cluster, store, incarnation)
                    await _save(files, path, identity)
                if (identity.cluster, identity.store) != (cluster, store):
                    raise InvalidInput(
                        f"{path} belongs to store {identity.store} of cluster "
                        f"{identity.cluster!r}, not to store {store} of {cluster!r}: correct the "
                        "configuration, or give another data folder"
                    )
                folder = cls(files, path, identity)
                await folder._use_newest_log()
            except BaseException:
                await perform(files, seam.Close(f"{path}/LOCK"))
                raise
        return folder

    @classmethod
    async def open_existing(cls, environment: Environment, path: str) -> "DataFolder":
        """Opens the folder of any store, for tools; `NotFound` if there is none."""
        files = environment.files
        with explained(path):
            (names,) = await perform(files, seam.ListDirectory(path))
            if names is None or "IDENTITY" not in names:
                raise NotFound(
                    f"there is no Raftwood store in {path}: give the path of a data folder"
                )
            await _lock(files, path)
            try:
                identity = await _load(files, path)
                assert identity is not None
                folder = cls(files, path, identity)
                folder.identity = await folder._with_newest_log()
                folder.has_older_identity = folder.identity != identity
                await folder.check_log()
            except BaseException:
                await perform(files, seam.Close(f"{path}/LOCK"))
                raise
        return folder

    async def check_log(self) -> None:
        """Raises `StoreDamaged` if the folder had a log and has none now."""
        if self.identity.initialised and not await _has_log(self._files, self.log_path):
            raise StoreDamaged(f"{self.path} has lost its log: {self.log_path} has no segment")

    async def logs_aside(self) -> list[str]:
        """The folders of damaged logs that were set aside and still exist, oldest first."""
        current = log_number(self.identity.log)
        if current == 1:
            return []
        (names,) = await perform(self._files, seam.ListDirectory(self.path))
        logs = sorted((log_number(name), name) for name in names if _LOG_NAME.fullmatch(name))
        return [f"{self.path}/{name}" for number, name in logs if number < current]

    def next_log_path(self) -> str:
        """Where to build a log that replaces the one in use."""
        return self._log_at(log_number(self.identity.log) + 1)

    def _log_at(self, number: int) -> str:
        return f"{self.path}/{_FIRST_LOG}" + (f"-{number}" if number > 1 else "")

    async def use_next_log(self) -> None:
        """Replaces the log in use by the one at `next_log_path`; the old one stays as it is.

        One file is replaced, so that a crash leaves the old log in use or the new one. Between two
        renames of folders there would be no log at all (decision 0034). Test:
        tests/unit/raft/test_damaged_log::test_setting_a_log_aside_goes_on_after_a_crash_at_any_time
        """
        name = posixpath.basename(self.next_log_path())
        identity = msgspec.structs.replace(self.identity, log=name, initialised=True)
        await _save(self._files, self.path, identity)
        self.identity = identity
        await self._note_in_use()

    async def _use_newest_log(self) -> None:
        """Uses the log that was used last, whichever one IDENTITY names.

        An IDENTITY that was restored from a backup may name a log that was set aside since. The
        store would set that aside once more, and build a new log in the place of the good one.
        Test: tests/unit/disk/test_folder::
        test_the_log_used_last_is_used_whatever_an_older_identity_names
        """
        identity = await self._with_newest_log()
        if identity != self.identity:
            await _save(self._files, self.path, identity)
            self.identity = identity
        await self._note_in_use()

    async def _with_newest_log(self) -> FolderIdentity:
        (names,) = await perform(self._files, seam.ListDirectory(self.path))
        newest = log_number(self.identity.log)
        for number in sorted(log_number(name) for name in names if is_log_name(name)):
            (size,) = await perform(self._files, seam.Size(f"{self._log_at(number)}/{IN_USE}"))
            if number > newest and size is not None:
                newest = number
        if newest == log_number(self.identity.log):
            return self.identity
        name = posixpath.basename(self._log_at(newest))
        return msgspec.structs.replace(self.identity, log=name, initialised=True)

    async def _note_in_use(self) -> None:
        """Creates the IN-USE note before each use: a crash may have come before it was made."""
        if self.identity.log == _FIRST_LOG:
            return
        path = f"{self.log_path}/{IN_USE}"
        (size,) = await perform(self._files, seam.Size(path))
        (names,) = await perform(self._files, seam.ListDirectory(self.log_path))
        if size is None and names is not None:
            await perform(
                self._files,
                seam.Open(path, create=True),
                seam.DataSync(path),
                seam.Close(path),
                seam.SyncDirectory(self.log_path),
            )

    async def mark_initialised(self) -> None:
        """Notes that the folder's log exists and must be there from now on."""
        if not self.identity.initialised:
            identity = msgspec.structs.replace(self.identity, initialised=True)
            await _save(self._files, self.path, identity)
            self.identity = identity

    async def close(self) -> None:
        """Releases the lock."""
        await perform(self._files, seam.Close(f"{self.path}/LOCK"))


async def _make(files: Files, path: str) -> None:
    """Creates the folder and its parents, durably; the stamp in it says that this was done.

    A synced log in a folder whose parents were not synced is gone after a power loss. Test:
    tests/unit/disk/test_folder_on_bad_ground::
    test_an_acked_write_survives_a_power_loss_wherever_the_folder_is
    """
    (names,) = await perform(files, seam.ListDirectory(path))
    if names is not None and "IDENTITY" in names:
        return
    parent = posixpath.dirname(path) or "."
    await perform(files, seam.MakeDirectory(path), seam.SyncDirectory(parent))
    # Also parents that were there before: a process that was killed may have made them unsynced.
    with suppress(PermissionError):  # one that may not be read is not one that we made
        while parent not in (".", "/"):
            parent = posixpath.dirname(parent) or "."
            await perform(files, seam.SyncDirectory(parent))


async def _lock(files: Files, path: str) -> None:
    lock = f"{path}/LOCK"
    try:
        *_, locked = await perform(files, seam.Open(lock, create=True), seam.Lock(lock))
        if not locked:
            raise StoreLocked(
                f"{path} is in use by another process: stop that one, or give another data folder"
            )
    except BaseException:
        await perform(files, seam.Close(lock))
        raise


async def _load(files: Files, path: str) -> FolderIdentity | None:
    """Reads the identity on disk; None for a new folder."""
    stamp = f"{path}/IDENTITY"
    (size,) = await perform(files, seam.Size(stamp))
    if size is None:
        (names,) = await perform(files, seam.ListDirectory(path))
        for name in names or ():
            if _LOG_NAME.fullmatch(name) and await _has_log(files, f"{path}/{name}"):
                raise StoreDamaged(f"{path} holds a log but no IDENTITY: {_REMEDY}")
        return None
    (data,) = await perform(files, seam.Read(stamp, 0, min(size, _IDENTITY_BYTES_MAX)))
    return decode_identity(data, path=stamp)


async def _has_log(files: Files, path: str) -> bool:
    (names,) = await perform(files, seam.ListDirectory(path))
    return any(name.endswith(".segment") for name in names or ())


def is_log_name(name: str) -> bool:
    """Whether a folder of this name in a data folder holds, or held, its log."""
    return _LOG_NAME.fullmatch(name) is not None


def log_number(name: str) -> int:
    """The number of a log's folder; the highest one was made last."""
    return int(name.partition("-")[2] or 1)


async def _save(files: Files, path: str, identity: FolderIdentity) -> None:
    """Replaces the stamp in one step: after a crash it is the old one or the new one."""
    temporary, stamp = f"{path}/IDENTITY.temporary", f"{path}/IDENTITY"
    await perform(
        files,
        seam.Open(temporary, create=True),
        seam.Truncate(temporary, 0),
        seam.Write(temporary, 0, [encode_identity(identity)]),
        seam.DataSync(temporary),
        seam.Rename(temporary, stamp),
        seam.Close(stamp),
        seam.SyncDirectory(path),
    )


class Store:
    """One locked data folder and the log in it; use `open`, and `close` when done."""

    def __init__(self, folder: DataFolder, log: SegmentLog) -> None:
        self._folder = folder
        self.log = log
        self._closing: asyncio.Task[None] | None = None

    @property
    def path(self) -> str:
        return self._folder.path

    @property
    def identity(self) -> FolderIdentity:
        return self._folder.identity

    @classmethod
    async def open(
        cls,
        environment: Environment,
        path: str,
        *,
        cluster: str,
        store: int,
        settings: LogSettings | None = None,
        replace_log: Callable[[DataFolder, StoreDamaged], Awaitable[None]] | None = None,
    ) -> "Store":
        """Locks the folder, recovers its log, and notes that it has one.

        `replace_log` is for an owner that can do without a damaged log: it replaces the log
        (`DataFolder.use_next_log`), or raises the error for the operator.
        """
        folder = await DataFolder.open(environment, path, cluster=cluster, store=store)
        try:
            with explained(path):
                try:
                    log = await _open_log(environment, folder, settings)
                except StoreDamaged as error:
                    if replace_log is None:
                        raise
                    await replace_log(folder, error)
                    log = await _open_log(environment, folder, settings)
                try:
                    # Before anything is acked, so that a log which vanishes later is noticed.
                    await folder.mark_initialised()
                except BaseException:
                    await log.close()
                    raise
        except BaseException:
            await folder.close()
            raise
        return cls(folder, log)

    async def logs_aside(self) -> list[str]:
        """The folders of damaged logs that were set aside and still exist."""
        return await self._folder.logs_aside()

    async def close(self) -> None:
        """Makes all durable, then releases the folder; runs to its end even if cancelled."""
        if self._closing is None:
            loop = asyncio.get_running_loop()
            self._closing = loop.create_task(self._close(), name=f"closing of {self.path}")
        await asyncio.shield(self._closing)

    async def abandon(self) -> None:
        """Releases the folder as a crash would: what was not durable may be lost."""
        try:
            await self.log.abandon()
        finally:
            if self._closing is None:
                await self._folder.close()
            else:
                await asyncio.wait([self._closing])

    async def _close(self) -> None:
        try:
            await self.log.close()
        finally:
            await self._folder.close()


async def _open_log(
    environment: Environment, folder: DataFolder, settings: LogSettings | None
) -> SegmentLog:
    await folder.check_log()
    return await SegmentLog.open(environment, folder.log_path, settings)
