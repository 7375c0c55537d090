"""Raft groups: many replicated state machines on one store, over one shared log.

`core` is the protocol as a state machine without I/O, clock or randomness, in the shape of etcd's
RawNode. The modules here run it, as dragonboat's NodeHost does: one `NodeHost` per store, one
`Replica` per group.

- Start with `node_host`, then `engine` (how work is done, turn by turn) and `replica` (one group).
- The log: `group_log` (a group's part of the shared log) and `entry_format` (entries on disk and
  on the wire).
- Clients: `requests` (proposals and reads that wait), `sessions` (the session table, which lets
  each command run once), `service` and `client` (the same over the network), `admin` (what
  operators ask).
- Other stores: `transport` (connections and frames), `message_handler` (what comes in),
  `membership` (who belongs to a group), `registry` (addresses and data folders of stores).
- Snapshots: `snapshot_format` (the bytes), `snapshot_files` (on disk), `snapshotter` (in a
  replica's life, and between stores).
- Time and leadership: `ticker`, `quiesce` (idle groups), `leadership` (rules beyond the core's),
  `log_ends` (votes after a crash).
- A replica's life: `groups`, `bootstrap` (from what is stored to a replica that may speak),
  `repair`, `damaged_log`; `offline` works on the folder of a stopped store.

Imports `net`, `disk` and `base`. `state_machine` is the seam for what is built on raft.

Comments beside a rule name the failure that it prevents and what shows it. Tests are below
`tests/unit/raft` unless a folder is given; planted bugs, by their names in quotes, are in
`tests/kits/raft/hosts/mutants.py`. Decision 0007 has the host as a whole.
"""
