"""Whole raft hosts in a simulation: stores with many groups, clients, faults and checkers.

Read `machine` (the state machine and the witness that sees every replica apply), `store` (one store
as a process), `workload` (clients that write down what they saw), `watch` (leaders and logs as seen
from outside), then `cluster`, the simulation from start to verdict. `mutants` are bugs planted on
purpose.
"""
