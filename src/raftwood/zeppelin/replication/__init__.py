"""Replication of partitions: a master's binlog, record by record, to its slaves.

Start reading at `replicator`; `replica` is one partition on this node, `master` and `slave` are its
two sides. `epochs` finds where a slave resumes, `progress` which writes are done. Imports `model`,
`records` and `net`.
"""
