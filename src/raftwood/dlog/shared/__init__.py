"""DLOG as others use it: logs by their names, each with one owner among many processes.

`ownership` is who owns a log's writer, without I/O; `seat` carries it out. Whoever is not the owner
forwards appends to it (`peers`, `peer_service`); everybody reads from the ledgers themselves.

Start reading at `shared_logs`, then `shared_log`, `seats`.
"""
