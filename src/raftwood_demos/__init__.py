"""What `raftwood demo` shows: real processes on this machine, put under fire, with a report.

May import everything of `raftwood` but `raftwood.cli`, whose commands it starts as processes. Start
reading at `story`, then `cluster`, the shortest one with many processes.
"""
