"""History and tail are the stream, for any cut, while it is archived and truncated."""

import random

import pytest

from raftwood.base.errors import OutOfRange, StoreDamaged, UnsupportedVersion
from raftwood.base.position import Position
from raftwood.pipeline.archive.archive_rules import ShardBounds, plan, truncatable, unite
from raftwood.pipeline.archive.manifest import (
    ArchivedRange,
    Commit,
    Manifest,
    commit_name,
    decode_commit,
    encode_commit,
    in_order,
)


def commit(*ranges: tuple[int, int, int], rows: int = 1) -> Commit:
    return Commit(
        project="p",
        logstore="s",
        format="parquet",
        folder="data/x",
        ranges=tuple(
            ArchivedRange(
                shard=shard,
                first=str(first),
                end=str(end),
                rows=rows,
                time_min_us=first,
                time_max_us=end,
            )
            for shard, first, end in ranges
        ),
        made_ms=1,
    )


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

    def bounds(self) -> dict[int, ShardBounds]:
        return {
            shard: ShardBounds(Position(self.firsts[shard]), Position(self.nexts[shard]))
            for shard in self.logs
        }

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
        planned = plan(Manifest(self.commits).archived(), self.bounds(), skips_freed=False)
        if not planned:
            return
        for each in planned:
            self.history += [
                (each.shard, position, value)
                for position, value in sorted(self.logs[each.shard].items())
                if each.first <= position < each.end
            ]
        ranges = [(each.shard, int(each.first), int(each.end)) for each in planned]
        self.commits.append(commit(*ranges))

    def truncate(self) -> None:
        archived = Manifest(self.commits).archived()
        registered = {
            shard: Position(self.rng.randint(1, int(end))) for shard, end in archived.items()
        }
        for shard, before in truncatable(archived, registered, {}).items():
            assert before <= registered[shard]
            if shard in self.logs:
                self.firsts[shard] = max(self.firsts[shard], before)
                for position in [each for each in self.logs[shard] if each < before]:
                    del self.logs[shard][position]

    def read(self, known: Manifest) -> list[tuple[int, str]] | None:
        """As a reader that looked at the archive some time ago."""
        cuts = unite(known.archived(), self.bounds())
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
    known = Manifest(())
    for _ in range(200):
        world.step()
        if rng.random() < 0.3:
            known = Manifest(world.commits)
        expected = [each for shard in sorted(world.written) for each in world.written[shard]]
        found = world.read(known)
        if found is None:
            # The log was cut above what is known: the archive has what is missing.
            found = world.read(Manifest(world.commits))
        assert found == expected


def test_what_was_freed_before_it_was_archived_is_told_or_left_out() -> None:
    bounds = {0: ShardBounds(Position(10), Position(20))}
    with pytest.raises(OutOfRange, match=r"up to 5.*begins at 10"):
        plan({0: Position(5)}, bounds, skips_freed=False)
    (planned,) = plan({0: Position(5)}, bounds, skips_freed=True)
    assert (planned.first, planned.end) == (10, 20)
    manifest = Manifest([commit((0, 1, 5)), commit((0, 10, 20))])
    assert [(each.first, each.end) for each in manifest.gaps] == [("5", "10")]


def test_a_running_query_and_a_reader_hold_the_log() -> None:
    archived = {0: Position(50), 1: Position(7)}
    assert truncatable(archived, {0: Position(40)}, {0: Position(30)}) == {0: 30, 1: 7}


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
        Manifest([commit((0, 1, 5)), commit((0, 4, 6))])
    with pytest.raises(UnsupportedVersion):
        decode_commit(encode_commit(made).replace(b'"version": 1', b'"version": 9'), "x")
    for bad in (b"", b"{}", b"[1]", encode_commit(made)[:-9]):
        with pytest.raises(StoreDamaged):
            decode_commit(bad, "x")


def test_folders_are_chosen_by_time() -> None:
    manifest = Manifest([commit((0, 1, 5)), commit((0, 5, 9))])
    assert len(manifest.folders()) == 2
    assert len(manifest.folders(from_us=6)) == 1
    assert len(manifest.folders(to_us=3)) == 1
    assert manifest.folders(from_us=100) == []
    assert manifest.rows == 2
