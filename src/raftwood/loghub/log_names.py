"""How the logs of shards are called: a name says which kind of log it is, and is never given twice.

So whoever hands out logs by their names finds each without being told where it is kept.
"""

import re
from typing import Final

from raftwood.loghub.model import LogKind

LOG_PREFIX: Final = "loghub-"
"""Of all kinds; names without another kind's are the log service's."""
_DLOG_PREFIX: Final = f"{LOG_PREFIX}dlog-"
RANDOM_BYTES: Final = 12
_LOG_NAME: Final = re.compile(rf"{LOG_PREFIX}(dlog-)?[0-9a-f]{{{2 * RANDOM_BYTES}}}")


def log_name(kind: LogKind, random: bytes) -> str:
    return f"{_DLOG_PREFIX if kind is LogKind.DLOG else LOG_PREFIX}{random.hex()}"


def kind_of_log(name: str) -> LogKind:
    """Where the log of this name is kept."""
    return LogKind.DLOG if name.startswith(_DLOG_PREFIX) else LogKind.LOGSERVICE


def is_log_name(name: str) -> bool:
    """Whether it is one that LogHub gave."""
    return _LOG_NAME.fullmatch(name) is not None
