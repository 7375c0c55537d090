"""What every other package stands on: errors, ids, configuration, telemetry, and the seams.

Imports nothing of Raftwood. Start with `errors` (the tree of errors), then `environment` and
`files` (what code may take from the world), then `seams` (what packages hand each other).
"""
