"""A node of Zeppelin: partitions of tables on one disk, their binlogs, and their clients.

Start reading at `server`. `store` and `stored_partition` are the storage, `membership` carries out
the meta server's topology, `data_connection` serves one client. Imports all of Zeppelin but its
client.
"""
