"""HAKeeper: the raft group that knows all stores, shards and services, and mends what breaks.

Start reading at `reports` and `orders` (what goes in and out), then `rules` and `checkers`.
"""
