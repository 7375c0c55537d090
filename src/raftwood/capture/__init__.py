"""Changes of Zeppelin's tables as streams of LogHub, and streams applied to tables.

Start reading at `rules`, what is captured of one partition, then `lane`, how it gets into its
shard once, `taking_over`, how a process finds where the one before it ended, and `capture`, which
runs all partitions of a table. `events` is the form of a change in a stream. `replay` applies a
stream to another table.
"""
