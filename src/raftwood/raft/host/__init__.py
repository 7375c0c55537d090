"""What a host of many raft groups stores and sends; so far the formats and the cache of entries.

Start with `runs` (entries as one buffer, the same in the log and on the wire), then `wire` (a
turn's messages of all groups in one frame) and `group_state` (a group's small record).
"""
