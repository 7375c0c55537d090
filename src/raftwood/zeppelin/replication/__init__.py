"""Replication of partitions: a master's binlog, record by record, to its slaves.

`epochs`, `trysync`, `receiver_rules`, `sender_rules` and `progress` are rules without I/O; start
reading there. `replicator` keeps a node's part in it as the topology says: `leading` is the
master's side of a partition, `following` a slave's, `sender` sends to one peer in turn for all
partitions, `full_sync` moves a whole copy, `wire` is what nodes say to one another.
"""
