"""The ground of a host of many raft groups: its formats, and the storage that the core reads.

`sessions` lets each command of a client run once, over the entries of `control`.
Start with `runs` (entries as one buffer, the same in the log and on the wire), then `wire` (a
turn's messages of all groups in one frame) `group_state` (a group's small record) and
`group_storage` (the shared log as the core reads it). `snapshots` are files beside the log.
"""
