"""A small replicated service, written as product code is, to prove the ground it stands on.

It keeps registers on three replicas as Attiya, Bar-Noy and Dolev describe ("Sharing memory robustly
in message-passing systems", 1995): both phases of a read or a write need a majority, so there is no
leader to elect. It uses the RPC of `net` and the store of `disk`, and runs on the simulated loop
and on real ones unchanged.

Read `protocol`, `replica` and `register` first; `workload` records what clients saw, `cluster` is
the simulation with faults, `mutants` are bugs planted on purpose, and `python -m
tests.kits.testing.toy` is one replica as a real process.
"""
