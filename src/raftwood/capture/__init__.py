"""Changes of Zeppelin's tables as streams of LogHub, and streams applied to tables.

Imports the clients of both, what they share, `net` and `base`. Start reading at `rules`, which
decides what is captured of one partition. `lane` puts each change into its shard once, `takeover`
finds where the former process ended, and `capture` runs all partitions of a table. `events` defines
how a change looks in a stream. `replay` applies a stream to another table.
"""
