"""A store of the log service: its shards served to clients, and its part in what HAKeeper does.

Start reading at `log_store`, then `shard_service` for requests, `truncation` for the truncation
worker, `heartbeats` for the store's reports and the orders it carries out, and `keeper_service`
for the replica of HAKeeper. Imports `raft`.
"""
