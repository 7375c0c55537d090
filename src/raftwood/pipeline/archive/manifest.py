"""The manifest of an archive: which ranges of which shards are in which folders.

It is a row of commits, each a small file that is made once and never changed. A range that no
commit names does not exist, whatever files lie around; so what was written and not committed is
written anew, and nothing is there twice.
"""

import re
from collections.abc import Iterable, Sequence
from typing import Final

import msgspec

from raftwood.base.errors import StoreDamaged, UnsupportedVersion
from raftwood.base.position import Position, parse_position

VERSION: Final = 1
FOLDER: Final = "_manifest"
_NAME: Final = re.compile(r"([0-9]{12})\.json")


class ArchivedRange(msgspec.Struct, frozen=True, kw_only=True):
    """Batches of a shard, first ≤ position < end; positions are decimal text."""

    shard: int
    first: str
    end: str
    rows: int
    time_min_us: int | None = None
    """Of its records, since 1970; None where there is none."""
    time_max_us: int | None = None

    @property
    def begins_at(self) -> Position:
        return parse_position(self.first)

    @property
    def ends_at(self) -> Position:
        return parse_position(self.end)


class Commit(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What one run of the archiver added."""

    version: int = VERSION
    project: str
    logstore: str
    format: str
    """`parquet` or `delta`."""
    folder: str
    """Where its files are, below the archive's own folder; empty where there are no rows."""
    ranges: tuple[ArchivedRange, ...]
    made_ms: int


_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder(Commit).decode


def commit_name(number: int) -> str:
    """The name of a commit's file; names are in the order of commits."""
    return f"{number:012d}.json"


def number_of(name: str) -> int | None:
    """Of a commit's file; None for any other."""
    found = _NAME.fullmatch(name)
    return int(found[1]) if found else None


def encode_commit(commit: Commit) -> bytes:
    return msgspec.json.format(_encode(commit), indent=1) + b"\n"


def decode_commit(data: bytes, name: str) -> Commit:
    """`UnsupportedVersion` where a newer program made it, `StoreDamaged` where none did."""
    try:
        version = msgspec.json.decode(data, type=_Versioned).version
        if version > VERSION:
            raise UnsupportedVersion(
                f"commit {name} of the archive is of version {version}, this program reads up to "
                f"{VERSION}: use a newer program"
            )
        return _decode(data)
    except msgspec.MsgspecError as error:
        raise StoreDamaged(
            f"commit {name} of the archive cannot be read ({error}): restore it from a copy"
        ) from error


class _Versioned(msgspec.Struct):
    version: int


class Manifest:
    """All commits so far; ranges of a shard follow one another, and do not overlap."""

    def __init__(self, commits: Sequence[Commit]) -> None:
        self.commits = tuple(commits)
        self._ends: dict[int, Position] = {}
        self._firsts: dict[int, Position] = {}
        self.gaps: list[ArchivedRange] = []
        """Freed before they were archived, and left out on purpose."""
        for number, commit in enumerate(commits):
            for each in commit.ranges:
                self._add(number, each)

    def _add(self, number: int, added: ArchivedRange) -> None:
        end = self._ends.get(added.shard)
        if added.ends_at < added.begins_at or (end is not None and added.begins_at < end):
            raise StoreDamaged(
                f"commit {number} of the archive has shard {added.shard} from {added.first} to "
                f"{added.end}, and it was archived up to {end}: the manifest was tampered with"
            )
        if end is not None and added.begins_at > end:
            self.gaps.append(
                ArchivedRange(shard=added.shard, first=str(end), end=added.first, rows=0)
            )
        self._firsts.setdefault(added.shard, added.begins_at)
        self._ends[added.shard] = added.ends_at

    def archived(self) -> dict[int, Position]:
        """Of each shard in it, behind the last position that is archived."""
        return dict(self._ends)

    def first(self, shard: int) -> Position | None:
        """Where a shard's archive begins; what was freed before is nowhere."""
        return self._firsts.get(shard)

    def folders(self, *, from_us: int | None = None, to_us: int | None = None) -> list[str]:
        """Of commits with records between two times, or with any; in order."""
        return [
            commit.folder
            for commit in self.commits
            if commit.folder and any(_overlaps(each, from_us, to_us) for each in commit.ranges)
        ]

    @property
    def rows(self) -> int:
        return sum(each.rows for commit in self.commits for each in commit.ranges)


def _overlaps(archived: ArchivedRange, from_us: int | None, to_us: int | None) -> bool:
    if archived.time_min_us is None or archived.time_max_us is None:
        return False
    return (from_us is None or archived.time_max_us >= from_us) and (
        to_us is None or archived.time_min_us < to_us
    )


def in_order(names: Iterable[str]) -> list[str]:
    """The commits' files among those of a folder; `StoreDamaged` where one is missing."""
    numbers = sorted(number for number in map(number_of, names) if number is not None)
    if numbers != list(range(len(numbers))):
        missing = next(place for place, number in enumerate(numbers) if number != place)
        raise StoreDamaged(
            f"commit {commit_name(missing)} of the archive is missing: restore it from a copy"
        )
    return [commit_name(number) for number in numbers]
