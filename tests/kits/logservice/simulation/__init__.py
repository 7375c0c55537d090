"""Whole log stores in a simulation: HAKeeper, shards, clients, faults and checkers.

Read `records` (what clients wrote down, and the rules that it has to keep), `workload` (the
clients), `watch` (replicas as seen from outside), then `world`, a run from start to verdict.
`mutants` are bugs planted on purpose.
"""
