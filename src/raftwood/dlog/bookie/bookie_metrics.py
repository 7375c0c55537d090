"""A bookie's figures, read when somebody looks."""

from raftwood.base.metrics import Metrics
from raftwood.dlog.bookie.bookie import Bookie


def show_bookie(metrics: Metrics, bookie: Bookie) -> None:
    """Registers them; several bookies in one process differ by their label."""
    labels = {"bookie": bookie.id}
    counts = bookie.counts
    for name, text, field in (
        ("bookie_adds_total", "Entries added.", "adds"),
        ("bookie_added_bytes_total", "Bytes of the entries added.", "added_bytes"),
        ("bookie_repeated_adds_total", "Adds of entries that were there already.", "repeated"),
        ("bookie_reads_total", "Entries read.", "reads"),
        ("bookie_read_bytes_total", "Bytes of the entries read.", "read_bytes"),
        ("bookie_damaged_reads_total", "Reads that found an entry damaged.", "damaged"),
        ("bookie_fences_total", "Ledgers fenced.", "fences"),
    ):
        metrics.pull_counter(name, text, _Field(counts, field).read, labels)
    for name, text, read in (
        ("bookie_ledgers", "Ledgers of which there is anything.", bookie.ledger_count),
        ("bookie_read_only", "1 while no entries are taken.", lambda: bookie.is_read_only),
        ("bookie_waits", "Readers that wait for more.", lambda: bookie.wait_count),
        (
            "bookie_journal_queue_bytes",
            "Bytes written and not synced yet.",
            lambda: bookie.statistics().pending_bytes,
        ),
        ("bookie_disk_bytes", "Bytes of the log.", lambda: bookie.statistics().disk_bytes),
        ("bookie_live_bytes", "Bytes of it in use.", lambda: bookie.statistics().live_bytes),
    ):
        metrics.pull_gauge(name, text, read, labels)


class _Field:
    def __init__(self, counts: object, name: str) -> None:
        self._counts = counts
        self._name = name

    def read(self) -> float:
        return float(getattr(self._counts, self._name))
