"""The queries, and the rows that each system makes in their tables."""

from typing import Final

import msgspec

FULL: Final = "full scan"
NAMED: Final = "full scan, fields by name"
TWO_COLUMNS: Final = "two-column aggregate"
SINK: Final = "sink"
CASES: Final = (FULL, NAMED, TWO_COLUMNS, SINK)

ARROW: Final = "loghub, stored as Arrow"
GROUPS: Final = "loghub, stored as protobuf"
ARCHIVE: Final = "loghub, archived"
PARQUET: Final = "parquet files"
KAFKA: Final = "kafka"


class Goal(msgspec.Struct, frozen=True):
    """So many times Kafka's rows per second of CPU."""

    row: str
    case: str
    factor: float


GOALS: Final = (
    Goal(ARROW, FULL, 2.0),
    Goal(GROUPS, FULL, 2.0),
    Goal(ARCHIVE, TWO_COLUMNS, 5.0),
    Goal(ARROW, SINK, 1.5),
)
