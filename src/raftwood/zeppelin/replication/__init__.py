"""Replication of partitions: a master's binlog, record by record, to its slaves.

Start reading at `replicator`; `replica` is one partition on this node, `master` and `slave` are its
two sides, `epochs` is where a slave goes on, `progress` what is done. Imports `model`, `records`
and `net`.
"""
