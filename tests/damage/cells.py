"""Cells of the table: what is damaged, how, on how many processes, and what was observed."""

import random
from collections.abc import Callable, Iterable, Mapping
from enum import IntEnum
from typing import Final

import msgspec

from raftwood.disk.store import decode_identity, encode_identity
from raftwood.testing.file_system import Content, FileSystem, Inode

SECTOR_BYTES: Final = 512
DAMAGES: Final = ("one bit", "one sector", "truncated", "zeroed tail", "deleted", "older copy")
SCOPES: Final = ("one", "two", "all")
"""How many of three processes have the damage, each at a place of its own."""
SEEDS: Final = (0, 1)


class Outcome(IntEnum):
    """What a cell came to, the worse the higher."""

    NOT_HIT = 0
    """The file is not there, or as it was."""
    UNHARMED = 1
    """All acked records are served, and nobody had to do anything about it."""
    REPAIRED = 2
    """The same, after the damaged process got from the others what it lacked."""
    REFUSED = 3
    """The damaged process refuses and says so; the others serve all acked records."""
    OPERATOR = 4
    """Nothing is served, and nothing wrong: an operator brings a copy back, or decides."""
    LOST = 5
    """Acked records were missing from what was served."""
    WRONG = 6
    """Records were served that nobody wrote, or twice, or not alike."""

    @property
    def is_failure(self) -> bool:
        return self >= Outcome.LOST

    def __str__(self) -> str:
        return _NAMES[self]


_NAMES: Final = {
    Outcome.NOT_HIT: "–",
    Outcome.UNHARMED: "unharmed",
    Outcome.REPAIRED: "repaired by itself",
    Outcome.REFUSED: "refused",
    Outcome.OPERATOR: "needs an operator",
    Outcome.LOST: "LOST",
    Outcome.WRONG: "WRONG",
}


class Cell(msgspec.Struct, frozen=True):
    """One place of the table."""

    process: str
    """What kind of process it is: store, bookie, node."""
    file: str
    damage: str
    scope: str

    def __str__(self) -> str:
        return f"{self.process}: {self.file}, {self.damage}, {self.scope}"


class Seen(msgspec.Struct, frozen=True):
    """What one run of a cell came to, and why."""

    outcome: Outcome
    reason: str = ""


Pick = Callable[[Mapping[str, bytes]], str | None]
"""Chooses the file of a class among those of a folder, by path."""


def written_bytes(data: bytes) -> int:
    """Up to where a file holds anything: a segment ends in zeros."""
    return len(data.rstrip(b"\0"))


def paths_in(file_system: FileSystem, folder: str) -> list[str]:
    return sorted(path for path in file_system.files if path.startswith(f"{folder}/"))


def saved(file_system: FileSystem, folder: str) -> dict[str, bytes]:
    """The files of a folder as they are now."""
    return {path: file_system.contents(path) for path in paths_in(file_system, folder)}


def put(file_system: FileSystem, path: str, data: bytes) -> None:
    """Let a file be this, in the cache and below it."""
    content = Content()
    content.write(0, data)
    inode = file_system.files.get(path) or Inode()
    inode.cached, inode.durable, inode.changes = content, content.copy(), []
    file_system.files[path] = file_system.durable_files[path] = inode


def bring_back(file_system: FileSystem, folder: str, files: Mapping[str, bytes]) -> None:
    """Let a folder be as it was when it was saved."""
    for path in paths_in(file_system, folder):
        if path not in files:
            file_system.lose(path)
    for path, data in files.items():
        put(file_system, path, data)


def harmed(before: bytes, damage: str, older: bytes | None, chosen: random.Random) -> bytes | None:
    """A file with damage; None where it is gone, and as it was where there is no older copy."""
    length = written_bytes(before)
    data = bytearray(before)
    if damage == "one bit":
        data[chosen.randrange(length)] ^= 1 << chosen.randrange(8)
    elif damage == "one sector":
        start = chosen.randrange(length) // SECTOR_BYTES * SECTOR_BYTES
        end = min(start + SECTOR_BYTES, len(data))
        data[start:end] = chosen.randbytes(end - start)
    elif damage == "truncated":
        del data[chosen.randrange(length) :]
    elif damage == "zeroed tail":
        start = chosen.randrange(length // 2, length)
        data[start:] = bytes(len(data) - start)
    elif damage == "deleted":
        return None
    elif older is not None:
        return older
    return bytes(data)


def harm_among(
    files: Mapping[str, bytes],
    pick: Pick,
    damage: str,
    older: Mapping[str, bytes],
    chosen: random.Random,
) -> tuple[str, bytes | None] | None:
    """The file of a class and what is left of it; None where there is nothing to damage."""
    path = pick(files)
    if damage == "older copy" and path is not None and older.get(path) is None:
        path = pick({each: files[each] for each in sorted(older) if each in files})
    if path is None:
        return None
    left = harmed(files[path], damage, _older_than(path, older), chosen)
    return None if left == files[path] else (path, left)


def harm_one_of(
    file_system: FileSystem,
    folder: str,
    pick: Pick,
    damage: str,
    older: Mapping[str, bytes],
    chosen: random.Random,
) -> bool:
    """Damage the file of a class in a folder; whether there was one to damage."""
    hit = harm_among(saved(file_system, folder), pick, damage, older, chosen)
    if hit is None:
        return False
    path, left = hit
    if left is None:
        file_system.lose(path)
    else:
        put(file_system, path, left)
    return True


def _older_than(path: str, older: Mapping[str, bytes]) -> bytes | None:
    """What a file was before. Some never change: then what stood in its place before it."""
    found = older.get(path)
    if path.endswith("/IDENTITY") and found is not None:
        identity = decode_identity(found, path=path)
        return encode_identity(msgspec.structs.replace(identity, initialised=False))
    if path.endswith(".snapshot"):
        earlier = [each for each in older if each.endswith(".snapshot") and each != path]
        return older[max(earlier, key=lambda each: len(older[each]))] if earlier else None
    return found


def victims(scope: str, processes: Iterable[int]) -> list[int]:
    return list(processes)[: {"one": 1, "two": 2, "all": 3}[scope]]


def judged(lines: list[bytes], acked: list[bytes], proposed: set[bytes]) -> Seen | None:
    """What is wrong with what was served; None where nothing is."""
    if len(set(lines)) < len(lines):
        return Seen(Outcome.WRONG, "a record was served twice")
    if strange := [line for line in lines if line not in proposed]:
        return Seen(Outcome.WRONG, f"nobody wrote {strange[0][:40]!r}")
    here = set(lines)
    if missing := [line for line in acked if line not in here]:
        return Seen(Outcome.LOST, f"{len(missing)} of {len(acked)} acked records are missing")
    return None


# Classes of files that all stores have.


def identity(files: Mapping[str, bytes]) -> str | None:
    return _first(path for path in files if path.endswith("/IDENTITY"))


def horizon(files: Mapping[str, bytes]) -> str | None:
    return _first(path for path in files if path.endswith("/HORIZON"))


def oldest_segment(files: Mapping[str, bytes]) -> str | None:
    return _first(_segments(files))


def newest_segment(files: Mapping[str, bytes]) -> str | None:
    return _first(reversed(_segments(files)))


def prepared_segment(files: Mapping[str, bytes]) -> str | None:
    """Made ahead of need."""
    return _first(_segments(files, are_used=False))


def _segments(files: Mapping[str, bytes], *, are_used: bool = True) -> list[str]:
    """Those that hold records, or those that do not: they have a header of 64 bytes alone."""
    return [
        path
        for path, data in files.items()
        if path.endswith(".segment") and (written_bytes(data) > 64) == are_used
    ]


def _first(paths: Iterable[str]) -> str | None:
    return next(iter(paths), None)


LOG_FILES: Final[dict[str, Pick]] = {
    "IDENTITY": identity,
    "HORIZON": horizon,
    "oldest segment": oldest_segment,
    "newest segment": newest_segment,
    "prepared segment": prepared_segment,
}
