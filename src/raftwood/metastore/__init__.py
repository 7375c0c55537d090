"""A small, consistent key-value store with versions, watches, leases and transactions.

May import `raft`, `net`, `disk` and `base`. Start with `rules` (the state machine without I/O) and
`commands` (its commands and results as bytes). `state_machine` is what a raft group replicates and
`raft_store` its client; `file_store` keeps the store in one folder, `zookeeper_store` in ZooKeeper
for many processes.
"""
