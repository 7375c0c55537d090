"""A store of the log service: serves its shards to clients, and carries out HAKeeper's orders.

Start reading at `log_store`, then `shard_service` for requests, `truncation` for the truncation
worker, `heartbeats` for the store's reports and the orders it carries out, and `keeper_service`
for the replica of HAKeeper. Imports `raft`.
"""
