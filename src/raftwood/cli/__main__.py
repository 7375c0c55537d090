"""`python -m raftwood.cli` is the `raftwood` command."""

from raftwood.cli.command_line import main

main()
