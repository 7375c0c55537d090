"""What is remembered of producers stays bounded, also where many write in turns for years."""

import random

import pytest

from raftwood.logservice import log_rules as module
from raftwood.logservice.log_rules import LogShardState, ShardProducers
from raftwood.logservice.records import encode_user_entry


def _counted(producers: ShardProducers) -> int:
    return sum(len(producer.runs) for _, producer in producers.items())


@pytest.mark.parametrize("seed", range(20))
def test_runs_are_counted_as_they_come_and_go(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "WINDOW", 8)
    monkeypatch.setattr(module, "PRODUCERS_MAX", 6)
    monkeypatch.setattr(module, "RUNS_MAX", 30)
    random_source = random.Random(seed)
    state = LogShardState()
    for index in range(1, 600):
        name = bytes([random_source.randrange(1, 10)]) * 16
        known = state.producers.get(name)
        top = known.top if known is not None else 0
        sequence = max(0, top + random_source.choice([1, 1, 1, 2, 5, -1, -3]))
        entry = encode_user_entry(
            b"x", holder=0, producer=name, sequence=sequence, is_ordered=False
        )
        state.apply(index, entry)
        assert state.producers.runs == _counted(state.producers)
        assert state.producers.runs == ShardProducers(dict(state.producers.items())).runs


def test_producers_that_came_and_went_do_not_fill_the_memory(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "RUNS_MAX", 5_000)
    state = LogShardState()
    index = 0
    for generation in range(100):
        names = [bytes([generation, each]) * 8 for each in range(1, 3)]
        for sequence in range(1, 300):
            for name in names:  # in turns, so that no two records of one stand together
                index += 1
                entry = encode_user_entry(b"", holder=0, producer=name, sequence=sequence)
                assert state.apply(index, entry) == index
    assert state.producers.runs <= 5_000 + 2 * 300
    for name in names:
        assert state.producers.get(name) is not None, "who writes now is remembered"
