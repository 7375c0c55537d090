"""Zeppelin: tables of keys and values, split into partitions, each with a master and its slaves.

Spoken to by any client of Redis Cluster. `model` is what all sides know of one another; `meta` says
who has which partition, on raft; `node` keeps partitions; `client` finds them.
"""
