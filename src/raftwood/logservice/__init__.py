"""Log service: replicated logs on raft groups, after MatrixOne's logservice.

Each log is a shard, a raft group of its own. Shard 0 is HAKeeper, which places and repairs the
others.

`records` is what an entry holds, `log_rules` what a log shard's entries lead to,
`log_state_machine` the same as a raft group replicates it, `wire` what clients and stores
exchange. `hakeeper` has the rules and the planner of the cluster, `server` is a store, `client`
appends, reads and truncates.

Imports `raft`, `net`, `disk` and `base`; `client` loads neither `raft` nor `server`. Start reading
at `records`, then `log_rules` and `server/log_store`; for users, `client/log_client`.
"""
