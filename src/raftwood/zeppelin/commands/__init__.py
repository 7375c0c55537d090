"""What Redis's commands do here.

Start reading at `dispatch`, then `command` and `session`. Commands on keys are pure functions on a
`Turn`. Imports `model`, `records`, `resp`, `replication.epochs`, and of `node` what its clients
see.
"""
