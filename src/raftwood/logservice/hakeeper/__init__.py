"""HAKeeper: the raft group that knows all stores, shards and services, and orders their repair.

Heartbeats of stores and services go in, orders come out. Start reading at `messages` (heartbeats,
orders, alarms), then `state`, `commands` (what is proposed and asked), `rules` (what each command
does to the state) and `checkers` (what the leader orders at each tick). `queries` answers
questions; `state_machine` is all of it as raft replicates it.

Pure: no clock, no randomness, no I/O. Clients load `messages`, `state` and `commands` alone.
"""
