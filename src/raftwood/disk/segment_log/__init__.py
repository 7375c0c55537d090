"""The shared write-ahead log: many groups, one sync. Start with `log`; bytes are in `format`.

Comments beside a rule name the failure that it prevents and the test that shows it: decisions are
in `docs/decisions`, tests below `tests/unit/disk` unless a folder is given, and planted bugs in
`tests/assurance/disk/test_crash_images.py`, which opens the log in every state that a crash can
leave.
"""

from raftwood.disk.segment_log.committer import SyncTime
from raftwood.disk.segment_log.log import SegmentLog
from raftwood.disk.segment_log.records import (
    DropGroup,
    GroupBounds,
    LogStatistics,
    Record,
    Run,
    SetState,
    StoredRun,
    TruncateHead,
    TruncateTail,
)
from raftwood.disk.segment_log.segments import LogSettings

__all__ = [
    "DropGroup",
    "GroupBounds",
    "LogSettings",
    "LogStatistics",
    "Record",
    "Run",
    "SegmentLog",
    "SetState",
    "StoredRun",
    "SyncTime",
    "TruncateHead",
    "TruncateTail",
]
