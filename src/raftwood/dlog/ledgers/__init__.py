"""The ledger layer: one quorum client over any kind of bookie.

`model` is what a ledger is, `seams` what the client needs of bookies and of the metadata, `rules`
the protocol as state machines without I/O. Users open a `ledger_store.LedgerStore`.
"""
