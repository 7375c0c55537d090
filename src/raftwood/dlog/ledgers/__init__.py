"""The ledger layer: one quorum client over any kind of bookie. Imports `base` alone.

`metadata` says what a ledger is, `seams` what the client needs of bookies and of the metadata,
`rules` is the protocol as state machines without I/O. Start reading there, then at `client`. The
layers above open a `seams.LedgerStore`.
"""
