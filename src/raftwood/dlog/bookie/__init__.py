"""Our own bookies, and metadata of ledgers on a metastore.

`ledger_descriptor` has a bookie's rules for one ledger, without I/O; `bookie` keeps ledgers on the
segment log. `server` and `remote_bookies` are the two ends of the network, `local_bookies` is the
same seam on bookies in this process. `metadata_store` keeps the metadata, `membership` the bookies'
identities; `auditor` repairs. Imports `ledgers`, `net`, `disk` and `base`.

`remote_bookies` is the clients' part: it imports neither `bookie` nor `server`.
"""
