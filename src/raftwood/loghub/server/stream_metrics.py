"""What a gateway counts: plain integers on the way of batches, read when somebody asks."""

from raftwood.base.metrics import Metrics


class StreamMetrics:
    """Of all projects together; a project's name is no label, there may be too many."""

    def __init__(self, metrics: Metrics) -> None:
        self.put_batches = 0
        self.put_bytes = 0
        self.put_records = 0
        self.pulled_batches = 0
        self.pulled_bytes = 0
        self.sealed_puts = 0
        self.truncations = 0
        self.overridden_positions = 0
        self.automatic_splits = 0
        counters = {
            "loghub_put_batches_total": ("Batches that were put.", lambda: self.put_batches),
            "loghub_put_bytes_total": ("Bytes that were put.", lambda: self.put_bytes),
            "loghub_put_records_total": (
                "Records that were put, as far as producers counted them.",
                lambda: self.put_records,
            ),
            "loghub_pulled_batches_total": (
                "Batches that were pulled.",
                lambda: self.pulled_batches,
            ),
            "loghub_pulled_bytes_total": ("Bytes that were pulled.", lambda: self.pulled_bytes),
            "loghub_sealed_puts_total": (
                "Puts that met a shard which was split or merged, and were routed anew or refused.",
                lambda: self.sealed_puts,
            ),
            "loghub_truncations_total": ("Times that a shard was cut.", lambda: self.truncations),
            "loghub_overridden_positions_total": (
                "Positions that a registered reader had not read, and that were too old.",
                lambda: self.overridden_positions,
            ),
            "loghub_automatic_splits_total": (
                "Hot shards that were split.",
                lambda: self.automatic_splits,
            ),
        }
        for name, (text, read) in counters.items():
            metrics.pull_counter(name, text, read)
