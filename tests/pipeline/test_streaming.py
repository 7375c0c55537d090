"""Streaming reads and writes: limits, splits and merges, restarts, exactly once."""

from pathlib import Path

import pytest

from raftwood.loghub.client import ProducerSettings
from tests.kits.pipeline.kit import PROJECT, Hub


def test_a_stream_is_copied_once_through_splits_merges_and_restarts(
    hub: Hub, tmp_path: Path
) -> None:
    source, target = hub.logstore(), hub.logstore()
    hub.fill(source, range(300))
    checkpoint = tmp_path / "checkpoint"
    frame = hub.stream(source, None, {"maxOffsetsPerTrigger": 200})
    progress = hub.copy(frame, target, checkpoint)
    assert sum(each["numInputRows"] for each in progress) == 300
    hub.client.split_shard(PROJECT, source, shard=0)
    hub.client.merge_shard(PROJECT, target, shard=0)
    hub.fill(source, range(300, 500))
    hub.copy(frame, target, checkpoint)
    hub.client.merge_shard(PROJECT, source, shard=2)
    hub.client.split_shard(PROJECT, target, shard=2)
    hub.fill(source, range(500, 700))
    hub.copy(frame, target, checkpoint)
    assert hub.numbers(target) == list(range(700))


def test_a_micro_batch_that_is_run_again_is_stored_once(hub: Hub, tmp_path: Path) -> None:
    source, target = hub.logstore(), hub.logstore()
    hub.fill(source, range(200))
    checkpoint = tmp_path / "checkpoint"
    frame = hub.stream(source, "n int, text string")
    options = {"keyColumn": "text"}
    hub.copy(frame, target, checkpoint, options)
    # As if the driver had been killed before it noted the last micro-batch as done.
    for commit in (checkpoint / "commits").iterdir():
        commit.unlink()
    hub.copy(frame, target, checkpoint, options)
    assert hub.numbers(target) == list(range(200))
    # And once more, after the shards that have stored it were split and merged.
    hub.client.split_shard(PROJECT, target, shard=0)
    hub.client.merge_shard(PROJECT, target, shard=3)
    for commit in (checkpoint / "commits").iterdir():
        commit.unlink()
    hub.copy(frame, target, checkpoint, options)
    assert hub.numbers(target) == list(range(200))


def test_a_batch_write_of_one_transaction_is_stored_once(hub: Hub) -> None:
    target = hub.logstore()
    frame = hub.spark.range(1000).selectExpr("id as n", "cast(id as string) as text")
    for version in (1, 1, 2):
        frame.write.format("loghub").mode("append").options(**hub.access).options(
            txnAppId="numbers", txnVersion=version
        ).save(f"{PROJECT}/{target}")
    assert hub.numbers(target) == sorted([*range(1000), *range(1000)])


def test_truncated_positions_fail_a_query_or_are_skipped_and_counted(
    hub: Hub, tmp_path: Path
) -> None:
    source, target = hub.logstore(shards=1), hub.logstore(shards=1)
    # However slow this machine sends, the records wait for each other until the producer ends.
    in_one_batch = ProducerSettings(linger_ms=20_000)
    hub.fill(source, range(10), settings=in_one_batch)
    checkpoint = tmp_path / "checkpoint"
    hub.copy(hub.stream(source), target, checkpoint)
    hub.fill(source, range(10, 20), settings=in_one_batch)
    hub.fill(source, range(20, 30), settings=in_one_batch)
    hub.truncate(source, shard=0, batches_left=1)
    with pytest.raises(Exception, match=r"positions .* of shard 0 can no longer be read"):
        hub.copy(hub.stream(source), target, checkpoint)
    frame = hub.stream(source, None, {"failOnDataLoss": "false"})
    progress = hub.copy(frame, target, checkpoint)
    assert '"skipped": 1' in progress[-1]["sources"][0]["endOffset"]
    assert hub.numbers(target) == [*range(10), *range(20, 30)]
