"""Bookies of our own, and ledgers' metadata on a metastore.

`held_ledger` is what a bookie answers, without I/O; `bookie` keeps it on the segment log. `service`
and `remote_bookies` are the two ends of the network, `local_bookies` is the same seam on bookies in
this process. `meta_ledgers` keeps the metadata, `membership` who is a bookie.
"""
