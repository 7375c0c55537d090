"""A table as Spark's processes reach it: the connection of one task is kept for the next."""

import atexit
import os
from typing import Final

from raftwood.net.tls import ClientTls, TlsFiles
from raftwood.pipeline.kv.options import TableAccess
from raftwood.zeppelin.client import Kv

_kept: dict[TableAccess, Kv] = {}
_KEPT_MAX: Final = 4
_process = os.getpid()


def connected_table(access: TableAccess) -> Kv:
    """This process's client of a table, made where there is none yet."""
    global _process  # noqa: PLW0603 (a process that was forked has no thread of its parent's)
    if _process != os.getpid():
        _process = os.getpid()
        _kept.clear()
    found = _kept.get(access)
    if found is None:
        while len(_kept) >= _KEPT_MAX:
            _kept.pop(next(iter(_kept))).close()
        files = TlsFiles(authorities=access.authorities)
        found = _kept[access] = Kv.connect(
            access.addresses,
            user=access.user,
            password=access.password,
            tls=ClientTls(files) if access.authorities else None,
            timeout_ms=access.timeout_ms,
        )
    return found


@atexit.register
def disconnect_tables() -> None:
    """Close this process's clients."""
    if _process == os.getpid():
        while _kept:
            _kept.popitem()[1].close()
