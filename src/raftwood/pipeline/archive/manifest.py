"""The manifest of an archive: which ranges of which shards are in which files.

It is a sequence of commits, each a small file that is created once and never changed. A range that
no commit names does not exist, whatever files lie around; so what was written and not committed is
written again, and nothing is there twice. `ArchiveLog` reads it from the archive, as it grows.
"""

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Final

import msgspec

from raftwood.base.errors import InvalidConfiguration, StoreDamaged
from raftwood.base.position import Position, parse_position
from raftwood.base.versions import unsupported
from raftwood.pipeline.archive.files import ArchiveFiles

VERSION: Final = 1
FOLDER: Final = "_manifest"
_NAME: Final = re.compile(r"([0-9]{12})\.json")


class ArchivedRange(msgspec.Struct, frozen=True, kw_only=True):
    """Batches of a shard, first ≤ position < end; positions are decimal text."""

    shard: int
    first: str
    end: str
    parents: tuple[int, ...] = ()
    is_last: bool = False
    """The shard was split or merged, and ends here."""

    @property
    def begins_at(self) -> Position:
        return parse_position(self.first)

    @property
    def ends_at(self) -> Position:
        return parse_position(self.end)


class ArchivedFile(msgspec.Struct, frozen=True, kw_only=True):
    """A file with records of one shard in order, from the batch at `first` to that at `last`."""

    path: str
    """Relative to the archive's own folder."""
    shard: int
    first: str
    last: str
    rows: int
    time_min_us: int | None = None
    """The earliest time of its records, since 1970; None if none has a time."""
    time_max_us: int | None = None


class Commit(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The additions of one run of the archiver."""

    version: int = VERSION
    project: str
    logstore: str
    format: str
    """`parquet` or `delta`."""
    ranges: tuple[ArchivedRange, ...]
    files: tuple[ArchivedFile, ...] = ()
    fields: dict[str, str] = {}
    """Contents that have columns of their own in these files, with their types."""
    made_ms: int


_encode: Final = msgspec.json.Encoder().encode
_decode: Final = msgspec.json.Decoder(Commit).decode


def commit_name(number: int) -> str:
    """Returns the name of a commit's file; names are in the order of commits."""
    return f"{number:012d}.json"


def number_of(name: str) -> int | None:
    """Returns the number of a commit's file; None for any other name."""
    found = _NAME.fullmatch(name)
    return int(found[1]) if found else None


def encode_commit(commit: Commit) -> bytes:
    return msgspec.json.format(_encode(commit), indent=1) + b"\n"


def decode_commit(data: bytes, name: str) -> Commit:
    """`UnsupportedVersion` if a newer program made it, `StoreDamaged` if no program did."""
    try:
        version = msgspec.json.decode(data, type=_Versioned).version
        if version > VERSION:
            raise unsupported(f"commit {name} of the archive", version, VERSION)
        return _decode(data)
    except msgspec.MsgspecError as error:
        raise StoreDamaged(
            f"commit {name} of the archive cannot be read ({error}): restore it from a copy"
        ) from error


class _Versioned(msgspec.Struct):
    version: int


class ArchivedShard(msgspec.Struct, kw_only=True):
    """The archived part of a shard: first ≤ position < end, except for the gaps."""

    first: Position
    end: Position
    parents: tuple[int, ...]
    is_ended: bool


class ArchiveManifest:
    """All commits so far; ranges of a shard follow one another, and do not overlap."""

    def __init__(self, commits: Sequence[Commit]) -> None:
        self.commits = tuple(commits)
        self.shards: dict[int, ArchivedShard] = {}
        self.gaps: list[ArchivedRange] = []
        """Ranges that were freed before they were archived, and left out on purpose."""
        for number, commit in enumerate(commits):
            for each in commit.ranges:
                self._add(number, each)

    def _add(self, number: int, added: ArchivedRange) -> None:
        begin, end = added.begins_at, added.ends_at
        known = self.shards.get(added.shard)
        if end < begin or (known is not None and begin < known.end):
            raise StoreDamaged(
                f"commit {number} of the archive has shard {added.shard} from {begin} to {end}, "
                f"and it was archived up to {known and known.end}: the manifest was tampered with"
            )
        if known is None:
            self.shards[added.shard] = ArchivedShard(
                first=begin, end=end, parents=added.parents, is_ended=added.is_last
            )
            return
        if begin > known.end:
            self.gaps.append(
                ArchivedRange(shard=added.shard, first=str(known.end), end=added.first)
            )
        known.end = end
        known.is_ended = added.is_last

    def archived(self) -> dict[int, Position]:
        """Returns for each of its shards the position behind the last archived one."""
        return {shard: each.end for shard, each in self.shards.items()}

    def files(
        self,
        *,
        shard: int | None = None,
        begin: Position | None = None,
        end: Position | None = None,
        from_us: int | None = None,
        to_us: int | None = None,
    ) -> Iterator[tuple[Commit, ArchivedFile]]:
        """Yields the files that may have records of a shard, of positions begin ≤ … < end, and of
        times between two; in order.
        """
        for commit in self.commits:
            for file in commit.files:
                if (
                    (shard is None or file.shard == shard)
                    and (begin is None or parse_position(file.last) >= begin)
                    and (end is None or parse_position(file.first) < end)
                    and _overlaps(file, from_us, to_us)
                ):
                    yield commit, file

    @property
    def rows(self) -> int:
        return sum(file.rows for commit in self.commits for file in commit.files)


def _overlaps(file: ArchivedFile, from_us: int | None, to_us: int | None) -> bool:
    if from_us is None and to_us is None:
        return True
    if file.time_min_us is None or file.time_max_us is None:
        return False
    return (from_us is None or file.time_max_us >= from_us) and (
        to_us is None or file.time_min_us < to_us
    )


def in_order(names: Iterable[str]) -> list[str]:
    """Returns the commits' files of a folder; `StoreDamaged` if one is missing."""
    numbers = sorted(number for number in map(number_of, names) if number is not None)
    if numbers != list(range(len(numbers))):
        missing = next(place for place, number in enumerate(numbers) if number != place)
        raise StoreDamaged(
            f"commit {commit_name(missing)} of the archive is missing: restore it from a copy"
        )
    return [commit_name(number) for number in numbers]


DATA: Final = "data"
"""The folder that has a folder for each commit's files."""
TABLE: Final = "table"
"""The folder of a Delta table, which all commits share."""


class ArchiveLog:
    """The commits of one logstore's archive; `InvalidConfiguration` if they are of another one."""

    def __init__(self, files: ArchiveFiles, *, project: str, logstore: str) -> None:
        self.files = files
        self._project = project
        self._logstore = logstore
        self._commits: list[Commit] = []

    def manifest(self) -> ArchiveManifest:
        """Returns the present manifest; commits never change, so each is read once."""
        for name in in_order(self.files.names(FOLDER))[len(self._commits) :]:
            commit = decode_commit(self.files.read(f"{FOLDER}/{name}"), name)
            if (commit.project, commit.logstore) != (self._project, self._logstore):
                raise InvalidConfiguration(
                    f"{self.files.uri} is the archive of {commit.project}/{commit.logstore}, not "
                    f"of {self._project}/{self._logstore}: give each logstore a folder of its own"
                )
            self._commits.append(commit)
        return ArchiveManifest(self._commits)

    def add(self, commit: Commit, *, number: int) -> bool:
        """Adds a commit; returns False if another one was faster, and this one does not count."""
        return self.files.create(f"{FOLDER}/{commit_name(number)}", encode_commit(commit))

    def clean(self, *, commits: int) -> list[str]:
        """Removes folders of runs that can never be committed: others have their numbers."""
        named = {file.path.split("/")[1] for commit in self._commits for file in commit.files}
        removed = [
            name
            for name in self.files.names(DATA)
            if name not in named and name.split("-")[0].isdigit() and int(name[:12]) < commits
        ]
        for name in removed:
            self.files.remove(f"{DATA}/{name}")
        return removed
