"""The program: command line, and the only place that wires implementations to seams.

May import every other package. Start with `command_line`; each command stands in `commands/`.
"""
