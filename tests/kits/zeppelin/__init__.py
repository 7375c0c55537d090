"""What tests of Zeppelin share: partitions in memory, nodes that never change, worlds of them."""
