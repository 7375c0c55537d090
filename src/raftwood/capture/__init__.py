"""Changes of Zeppelin's tables as streams of LogHub, and streams applied to tables.

Imports the clients of both, what they share, `net` and `base`. Start reading at `rules`, what is
captured of one partition, then `lane`, how it gets into its shard once, `takeover`, how a process
finds where the one before it ended, and `capture`, which runs all partitions of a table. `events`
is the form of a change in a stream. `replay` applies a stream to another table.
"""
