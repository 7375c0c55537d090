"""Whole gateways over whole log stores in a simulation: producers, readers, operators, faults.

Read `notebook` (what clients were told, and the rules that it has to keep), `link` and `workload`
(the clients), `metadata_watch` (every value of every logstore), then `world`, a run from start to
verdict. `mutants` are bugs planted on purpose.
"""
