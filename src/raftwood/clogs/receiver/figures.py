"""What a receiver counts: plain integers on the way of batches, read when somebody asks."""

from typing import Final

from raftwood.base.errors import RaftwoodError
from raftwood.base.metrics import Metrics

SYSTEMS_MAX: Final = 256
"""Systems with a figure of their own; those that come later share one."""
OTHER_SYSTEMS: Final = "other"


class ReceiverFigures:
    """Of one receiver. Names of files are no labels: there may be too many."""

    def __init__(self, metrics: Metrics) -> None:
        self.frames = 0
        self.pings = 0
        self.batches = 0
        self.records = 0
        self.bytes = 0
        self.dropped_datagrams = 0
        self.refused: dict[str, int] = {}
        """By the code of the error; there are as many as there are classes of them."""
        self.systems: dict[str, int] = {}
        counters = {
            "clogs_frames_total": ("Frames that shippers sent.", lambda: self.frames),
            "clogs_pings_total": ("Pings that were answered.", lambda: self.pings),
            "clogs_batches_total": (
                "Batches that were acknowledged, repetitions too.",
                lambda: self.batches,
            ),
            "clogs_records_total": ("Records of those batches.", lambda: self.records),
            "clogs_bytes_total": ("Bytes of those batches, as they came.", lambda: self.bytes),
            "clogs_datagrams_dropped_total": (
                "Datagrams that were forged, damaged, too many or could not be stored.",
                lambda: self.dropped_datagrams,
            ),
        }
        for name, (text, read) in counters.items():
            metrics.pull_counter(name, text, read)
        metrics.pull_counters(
            "clogs_refused_total", "Frames that were refused.", "code", lambda: self.refused
        )
        metrics.pull_counters(
            "clogs_system_batches_total",
            "Batches that were acknowledged, by the shipper's system id.",
            "system",
            lambda: self.systems,
        )

    def stored(self, *, system: int, records: int, size: int) -> None:
        self.batches += 1
        self.records += records
        self.bytes += size
        name = str(system)
        if name not in self.systems and len(self.systems) >= SYSTEMS_MAX:
            name = OTHER_SYSTEMS
        self.systems[name] = self.systems.get(name, 0) + 1

    def refuse(self, error: RaftwoodError) -> None:
        self.refused[error.code] = self.refused.get(error.code, 0) + 1
