"""A small, consistent key-value store with versions, watches, leases and transactions.

`state_machine` is what a raft group replicates, and `raft_store` its client.
May import `raft`, `net`, `disk` and `base`. Start with `rules` (the state machine without I/O) and
`commands` (what goes in and comes out, as bytes); `file_store` keeps it in one folder,
`zookeeper_store` in ZooKeeper for many processes.
"""
