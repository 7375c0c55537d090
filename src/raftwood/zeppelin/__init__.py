"""Zeppelin: tables of keys and values, split into partitions, each with a master and its slaves.

Any client of Redis Cluster can use it. Imports `raft`, `disk`, `net` and `base`. Start reading at
`model`, which all sides share. `meta` decides which node has which partition, on raft. `node`
stores partitions, `replication` copies them, `commands` implements Redis's commands, `client` finds
the partition of a key. The client imports no server; both share `model`, `slots`, `resp`, `records`
and `pages`.
"""
