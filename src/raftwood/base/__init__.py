"""The foundation of all other packages: errors, names, settings, telemetry, and the seams.

Imports nothing else of Raftwood. Start with `errors` (the tree of errors), then `environment` and
`files` (what code takes from the world), then `seams` (the interfaces between packages).
"""
