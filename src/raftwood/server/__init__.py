"""What a process is made of: stores and tenants, gateways, bookies, receivers, or all in one.

May import every package of `raftwood` but `cli`. Nothing here reads a command line, prints, or
takes a signal: that is the command's part, in `cli`. Start reading at `standalone`, which wires all
parts; then `store`, `gateway` and `settings`.
"""
