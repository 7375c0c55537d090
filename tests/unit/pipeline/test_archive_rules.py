"""History and tail are the stream, for any cut, while it is archived and truncated."""

import random

import pytest

from raftwood.base.errors import OutOfRange, StoreDamaged, UnsupportedVersion
from raftwood.base.position import Position
from raftwood.pipeline.archive.manifest import (
    ArchivedFile,
    ArchivedRange,
    ArchiveManifest,
    Commit,
    commit_name,
    decode_commit,
    encode_commit,
    in_order,
)
from raftwood.pipeline.archive.rules import plan, truncatable, unite
from raftwood.pipeline.offsets import ShardExtent


def commit(*ranges: tuple[int, int, int]) -> Commit:
    return Commit(
        project="p",
        logstore="s",
        format="parquet",
        ranges=tuple(
            ArchivedRange(shard=shard, first=str(first), end=str(end))
            for shard, first, end in ranges
        ),
        files=tuple(
            ArchivedFile(
                path=f"data/{shard}/{first}",
                shard=shard,
                first=str(first),
                last=str(end - 1),
                rows=1,
                time_min_us=first,
                time_max_us=end,
            )
            for shard, first, end in ranges
        ),
        made_ms=1,
    )


def view(shard: int, first: int, following: int) -> ShardExtent:
    return ShardExtent(id=shard, first=Position(first), next=Position(following))


class World:
    """Shards of records at positions, an archive of them, and what truncation freed."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.logs: dict[int, dict[int, str]] = {0: {}}
        self.nexts = {0: 1}
        self.firsts = {0: 1}
        self.written: dict[int, list[tuple[int, str]]] = {0: []}
        self.commits: list[Commit] = []
        self.history: list[tuple[int, int, str]] = []

    def views(self) -> list[ShardExtent]:
        return [view(shard, self.firsts[shard], self.nexts[shard]) for shard in self.logs]

    def step(self) -> None:
        rng = self.rng
        shard = rng.choice(list(self.logs))
        match rng.randrange(5):
            case 0 | 1:
                position = self.nexts[shard] + rng.randrange(2)
                value = f"{shard}@{position}"
                self.logs[shard][position] = value
                self.written[shard].append((position, value))
                self.nexts[shard] = position + 1
            case 2:
                self.archive()
            case 3:
                self.truncate()
            case _ if len(self.written) < 5:
                new = len(self.written)
                self.logs[new], self.written[new] = {}, []
                self.nexts[new] = self.firsts[new] = 1

    def archive(self) -> None:
        planned = plan(ArchiveManifest(self.commits).shards, self.views(), skips_freed=False)
        if not planned:
            return
        for each in planned:
            self.history += [
                (each.shard, position, value)
                for position, value in sorted(self.logs[each.shard].items())
                if each.begins_at <= position < each.ends_at
            ]
        ranges = [(each.shard, int(each.first), int(each.end)) for each in planned]
        self.commits.append(commit(*ranges))

    def truncate(self) -> None:
        archived = ArchiveManifest(self.commits).archived()
        registered = {
            shard: Position(self.rng.randint(1, int(end))) for shard, end in archived.items()
        }
        for shard, before in truncatable(archived, self.views(), registered).items():
            assert self.firsts[shard] < before <= min(registered[shard], archived[shard])
            self.firsts[shard] = before
            for position in [each for each in self.logs[shard] if each < before]:
                del self.logs[shard][position]

    def read(self, known: ArchiveManifest) -> list[tuple[int, str]] | None:
        """As a reader that looked at the archive some time ago."""
        cuts = unite(known.shards, self.views())
        if cuts is None:
            return None
        found = []
        for cut in cuts:
            found += [
                (position, value)
                for shard, position, value in self.history
                if shard == cut.shard and position < cut.tail
            ]
            log = self.logs.get(cut.shard, {})
            found += [
                (position, value)
                for position, value in sorted(log.items())
                if cut.tail <= position < cut.end
            ]
        return found


@pytest.mark.parametrize("seed", range(60))
def test_history_and_tail_are_the_stream(seed: int) -> None:
    rng = random.Random(seed)
    world = World(rng)
    known = ArchiveManifest(())
    for _ in range(200):
        world.step()
        if rng.random() < 0.3:
            known = ArchiveManifest(world.commits)
        expected = [each for shard in sorted(world.written) for each in world.written[shard]]
        found = world.read(known)
        if found is None:
            # The log was cut above what is known: the archive has what is missing.
            found = world.read(ArchiveManifest(world.commits))
        assert found == expected


def test_what_was_freed_before_it_was_archived_is_told_or_left_out() -> None:
    shards = [view(0, 10, 20)]
    with pytest.raises(OutOfRange, match=r"up to 5.*begins at 10"):
        plan(ArchiveManifest([commit((0, 1, 5))]).shards, shards, skips_freed=False)
    (planned,) = plan(ArchiveManifest([commit((0, 1, 5))]).shards, shards, skips_freed=True)
    assert (planned.begins_at, planned.ends_at) == (10, 20)
    manifest = ArchiveManifest([commit((0, 1, 5)), commit((0, 10, 20))])
    assert [(each.first, each.end) for each in manifest.gaps] == [("5", "10")]


def test_that_a_shard_has_ended_is_archived_and_one_that_goes_before_is_told_of() -> None:
    known = ArchiveManifest([commit((0, 1, 5))])
    ended = ShardExtent(id=0, first=Position(3), next=Position(5), is_ended=True)
    (noted,) = plan(known.shards, [ended], skips_freed=False)
    assert (noted.first, noted.end, noted.is_last) == ("5", "5", True)
    complete = Commit(project="p", logstore="s", format="parquet", ranges=(noted,), made_ms=2)
    after = ArchiveManifest([commit((0, 1, 5)), complete])
    assert plan(after.shards, [ended], skips_freed=False) == []
    assert plan(after.shards, [], skips_freed=False) == []
    assert unite(known.shards, []) is None
    child = ShardExtent(
        id=1, parents=(0,), parent_ends=(Position(5),), first=Position(1), next=Position(1)
    )
    assert unite(known.shards, [child]) is not None
    assert plan(known.shards, [child], skips_freed=False) == [noted]
    with pytest.raises(OutOfRange, match=r"up to 5, and it was deleted"):
        plan(known.shards, [], skips_freed=False)
    assert plan(known.shards, [], skips_freed=True) == [noted]


def test_who_reads_holds_the_log() -> None:
    archived = {0: Position(50), 1: Position(7), 2: Position(9)}
    shards = [view(0, 20, 60), view(1, 1, 7), view(2, 9, 9), view(3, 1, 5)]
    assert truncatable(archived, shards, {0: Position(40)}) == {0: 40, 1: 7}
    assert truncatable(archived, shards, {0: Position(0), 1: Position(0)}) == {}


def test_a_shard_that_is_gone_from_the_stream_is_read_from_the_archive() -> None:
    ended = ArchivedRange(shard=0, first="1", end="9", is_last=True)
    child = ArchivedRange(shard=1, first="1", end="4", parents=(0,))
    made = Commit(project="p", logstore="s", format="parquet", ranges=(ended, child), made_ms=1)
    cuts = unite(ArchiveManifest([made]).shards, [view(1, 2, 6)])
    assert cuts is not None
    assert [(each.shard, each.first, each.tail, each.end) for each in cuts] == [
        (0, 1, 9, 9),
        (1, 1, 4, 6),
    ]
    assert cuts[0].view().is_ended


def test_commits_are_read_as_they_were_written_and_only_in_order() -> None:
    made = commit((0, 1, 5), (3, 2, 9))
    assert decode_commit(encode_commit(made), "x") == made
    assert in_order([commit_name(1), "readme.txt", commit_name(0)]) == [
        commit_name(0),
        commit_name(1),
    ]
    with pytest.raises(StoreDamaged, match=r"000000000001\.json"):
        in_order([commit_name(0), commit_name(2)])
    with pytest.raises(StoreDamaged, match="tampered"):
        ArchiveManifest([commit((0, 1, 5)), commit((0, 4, 6))])
    with pytest.raises(UnsupportedVersion):
        decode_commit(encode_commit(made).replace(b'"version": 1', b'"version": 9'), "x")
    for bad in (b"", b"{}", b"[1]", encode_commit(made)[:-9]):
        with pytest.raises(StoreDamaged):
            decode_commit(bad, "x")


def test_files_are_chosen_by_time_and_place() -> None:
    manifest = ArchiveManifest([commit((0, 1, 5), (1, 1, 3)), commit((0, 5, 9))])
    assert len(list(manifest.files())) == 3
    assert [file.path for _, file in manifest.files(shard=0, from_us=6)] == ["data/0/5"]
    assert [file.path for _, file in manifest.files(to_us=3, shard=0)] == ["data/0/1"]
    assert list(manifest.files(from_us=100)) == []
    between = manifest.files(shard=0, begin=Position(4), end=Position(5))
    assert [file.path for _, file in between] == ["data/0/1"]
    assert manifest.rows == 3
