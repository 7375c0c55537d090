"""Zeppelin: tables of keys and values, split into partitions, each with a master and its slaves.

Any client of Redis Cluster speaks to it. Imports `raft`, `disk`, `net` and `base`. Start reading at
`model`, which all sides know. `meta` says which node has which partition, on raft; `node` keeps
partitions, `replication` copies them, `commands` is what Redis's commands do, `client` finds them.
The client imports no server: `model`, `slots`, `resp`, `records` and `pages` are what it shares
with one.
"""
