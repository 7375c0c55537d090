"""The `raftwood` command: the only package that reads command lines, prints, and takes signals.

May import every other package. Start with `command_line`; each noun of the command has a module of
its own, which is loaded when it is called.
"""
