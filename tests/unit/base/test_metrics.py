import pytest

from raftwood.base.errors import InvalidInput
from raftwood.base.metrics import SERIES_MAX, Metrics


def test_two_stores_in_one_process_do_not_collide() -> None:
    first, second = Metrics(store="1"), Metrics(store="2")
    first.counter("disk_writes_total", "Writes.").inc(3)
    second.counter("disk_writes_total", "Writes.").inc(5)
    assert b'raftwood_disk_writes_total{store="1"} 3.0' in first.render()
    assert b'raftwood_disk_writes_total{store="2"} 5.0' in second.render()


def test_pulled_metrics_are_read_when_rendered_and_not_before() -> None:
    metrics = Metrics()
    reads = 0

    def read() -> int:
        nonlocal reads
        reads += 1
        return 40 + reads

    metrics.pull_counter("net_frames_total", "Frames.", read)
    metrics.pull_gauge("net_queue_bytes", "Queued.", lambda: 7, labels={"peer": "2"})
    assert reads == 0
    text = metrics.render()
    assert b"raftwood_net_frames_total 41.0" in text
    assert b'raftwood_net_queue_bytes{peer="2"} 7.0' in text
    assert b"raftwood_net_frames_total 42.0" in metrics.render()


def test_asking_for_the_same_metric_again_gives_the_same_one() -> None:
    metrics = Metrics()
    metrics.counter("net_frames_total", "Frames.", labels={"peer": "1"}).inc()
    metrics.counter("net_frames_total", "Frames.", labels={"peer": "1"}).inc()
    metrics.counter("net_frames_total", "Frames.", labels={"peer": "2"}).inc()
    assert b'raftwood_net_frames_total{peer="1"} 2.0' in metrics.render()


def test_one_name_cannot_be_two_kinds() -> None:
    metrics = Metrics()
    metrics.gauge("net_queue_bytes", "Queued.")
    with pytest.raises(InvalidInput, match="exists already"):
        metrics.histogram("net_queue_bytes", "Queued.")
    with pytest.raises(InvalidInput, match="exists already"):
        metrics.pull_gauge("net_queue_bytes", "Queued.", lambda: 1)
    metrics.pull_gauge("net_connections", "Open.", lambda: 1)
    with pytest.raises(InvalidInput, match="exists already"):
        metrics.gauge("net_connections", "Open.")


def test_label_names_of_a_metric_do_not_change() -> None:
    metrics = Metrics()
    metrics.gauge("net_queue_bytes", "Queued.", labels={"peer": "1"})
    with pytest.raises(InvalidInput, match="labels"):
        metrics.gauge("net_queue_bytes", "Queued.", labels={"shard": "1"})


def test_histogram_counts_into_its_buckets() -> None:
    metrics = Metrics()
    sync = metrics.histogram("disk_sync_seconds", "Sync.", buckets=(0.001, 0.01))
    sync.observe(0.002)
    assert b'raftwood_disk_sync_seconds_bucket{le="0.01"} 1.0' in metrics.render()
    assert b"_created" not in metrics.render()


def test_a_dropped_series_is_gone() -> None:
    metrics = Metrics()
    metrics.gauge("net_queue_bytes", "Queued.", labels={"peer": "1"}).set(1)
    metrics.pull_gauge("net_inflight", "In flight.", lambda: 1, labels={"peer": "1"})
    metrics.drop("net_queue_bytes", {"peer": "1"})
    metrics.drop("net_inflight", {"peer": "1"})
    assert b'peer="1"' not in metrics.render()


@pytest.mark.parametrize("name", ["Frames_total", "raftwood_frames_total", "frames", "a__b_total"])
def test_names_out_of_the_rule_are_refused(name: str) -> None:
    with pytest.raises(InvalidInput, match=name):
        Metrics().counter(name, "Frames.")


def test_labels_from_outside_cannot_fill_the_memory() -> None:
    metrics = Metrics()
    for peer in range(SERIES_MAX):
        metrics.pull_gauge("net_inflight", "In flight.", lambda: 1, labels={"peer": str(peer)})
    with pytest.raises(InvalidInput, match="fewer values"):
        metrics.pull_gauge("net_inflight", "In flight.", lambda: 1, labels={"peer": "one more"})


def test_a_series_for_each_value_of_a_label_is_there_as_long_as_the_value_is() -> None:
    metrics = Metrics(store="3")
    sizes = {"1": 10, "2": 7}
    metrics.pull_gauges("shard_bytes", "Kept.", "shard", lambda: sizes)
    metrics.pull_counters("shard_reads_total", "Reads.", "shard", lambda: {"1": 2})
    text = metrics.render()
    assert b'raftwood_shard_bytes{shard="2",store="3"} 7.0' in text
    assert b'raftwood_shard_reads_total{shard="1",store="3"} 2.0' in text
    del sizes["2"]
    assert b'shard="2"' not in metrics.render()


def test_a_family_that_is_read_as_a_whole_is_registered_once_and_bounded() -> None:
    metrics = Metrics()
    metrics.pull_gauges("a_bytes", "", "shard", lambda: {str(each): 1 for each in range(20_000)})
    assert metrics.render().count(b"\nraftwood_a_bytes{") == SERIES_MAX
    with pytest.raises(InvalidInput, match="exists already"):
        metrics.pull_gauges("a_bytes", "", "shard", dict)
    with pytest.raises(InvalidInput, match="_total"):
        metrics.pull_counters("b_bytes", "", "shard", dict)
