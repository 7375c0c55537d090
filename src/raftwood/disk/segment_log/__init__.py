"""The shared write-ahead log: many groups, one sync. Start with `log`; bytes are in `format`."""

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
