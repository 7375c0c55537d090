"""A node of Zeppelin: partitions of tables on one disk, their binlogs, and who may change them.

Start reading at `server`. `store` and `stored_partition` are the storage, `membership` follows the
meta server, `data_connection` serves one client. Imports all of Zeppelin but its client.
"""
