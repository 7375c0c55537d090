"""A node of Zeppelin: partitions of tables on one disk, their binlogs, and who may change them."""
