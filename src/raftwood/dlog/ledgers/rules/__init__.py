"""The protocol of ledgers as state machines without I/O.

`quorums` is the arithmetic, `changes` what may become of metadata, `writing` who has which entry
and what may be acked, `recovering` what a ledger holds whose writer is gone, `reading` whom to ask.
"""
