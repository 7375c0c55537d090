"""DLOG: an unbounded log made of bounded ledgers, with one writer in the world.

A ledger is a bounded, replicated sequence of entries that is closed for ever; a log is a list of
ledgers, kept as one record in a metastore. Opening a writer fences the one before it.

`ledgers` is the ledger layer: one quorum client over any kind of bookie. `bookie` is a bookie of
our own, in this process or another; `bookkeeper` speaks to Apache BookKeeper. `log` is the
unbounded log. `shared` is the log as others use it: found by its name, with one owner among many
processes. Imports `net`, `disk` and `base`; the metastore is handed in.

Start reading at `ledgers/model`, `ledgers/seams`, then `ledgers/ledger_client`; `log/meta`, then
`log/log_writer`.
"""
