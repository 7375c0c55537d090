"""The log service's client: append, read, truncate and tail a shard, wherever its leader is.

Imports `wire`, the structs that it carries, `net` and `base`, and no server. Start reading at
`log_client`; `shard_log` is the same as the `Log` seam, `keeper_client` talks to HAKeeper.
"""
