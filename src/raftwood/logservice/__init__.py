"""Logservice: replicated logs on multi-raft.

Each log is a shard, a raft group of its own; shard 0 is HAKeeper, which keeps the others whole.
Imports `raft`, `net`, `disk` and `base`. Start reading at `records`, then `log_rules` and
`server/log_store`; for users, `client/log_client`.
"""
