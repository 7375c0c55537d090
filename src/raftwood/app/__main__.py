"""`python -m raftwood.app` is the `raftwood` command."""

from raftwood.app.command_line import main

main()
