"""Many raft groups on one store: `Host` is the door, and the rest is reached through it.

Start with `host`, then `turns` (how work is done), `replica` (one group), `writes` (what a turn
writes) and `outbox` (what it sends). `opening`, `groups` and `repair` are a replica's life;
`snapshotting`, `snapshot_transfer` and `snapshots` its snapshots; `sleeping` and `ticking` time;
`membership`, `incoming`, `peers` and `book` the other stores. Formats: `runs` (entries as one
buffer, the same in the log and on the wire), `wire` (a turn's messages of all groups in one frame),
`group_state` (a group's small record) and `control` (the host's own entries). `sessions` lets each
command run once.
"""
