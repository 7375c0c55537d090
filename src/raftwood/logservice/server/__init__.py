"""A log store: its shards served to clients, and its part in what HAKeeper does.

Start reading at `log_store`, then `shard_service` for requests and `truncation` for the worker.
"""
