"""Redis's commands on Zeppelin.

Start reading at `dispatch`, then `command` and `session`. Commands on keys are pure functions on a
`Turn`. Imports `model`, `records`, `resp`, `replication.epochs`, and the parts of `node` that serve
clients.
"""
