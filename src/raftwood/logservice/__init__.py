"""Log service: replicated logs on raft groups, after MatrixOne's logservice.

Each log is a shard, a raft group of its own. Shard 0 is HAKeeper, which places and repairs the
others.

`records` defines what an entry holds, `log_rules` what each entry does to a log shard,
`log_state_machine` replicates that as a raft group, `wire` defines what clients and stores
exchange. `hakeeper` has the rules and the planner of the cluster, `server` is a store, `client`
appends, reads and truncates.

Imports `raft`, `net`, `disk` and `base`; `client` loads neither `raft` nor `server`. Start reading
at `records`, then `log_rules` and `server/log_store`; for users, `client/log_client`.
"""
