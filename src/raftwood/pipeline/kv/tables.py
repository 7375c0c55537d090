"""A table as Spark's processes reach it: the connection of one task is kept for the next."""

from raftwood.net.tls import ClientTls, TlsFiles
from raftwood.pipeline.kept import Kept
from raftwood.pipeline.kv.options import TableAccess
from raftwood.zeppelin.client import Kv


def _connect(access: TableAccess) -> Kv:
    files = TlsFiles(authorities=access.authorities)
    return Kv.connect(
        access.addresses,
        user=access.user,
        password=access.password,
        tls=ClientTls(files) if access.authorities else None,
        timeout_ms=access.timeout_ms,
    )


_kept = Kept(_connect)
connected_table = _kept.get
"""This process's client of a table, made where there is none yet."""
disconnect_tables = _kept.close
"""Close this process's clients."""
