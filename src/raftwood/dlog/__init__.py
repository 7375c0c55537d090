"""DLOG: an unbounded log made of bounded ledgers, with one writer in the world.

A ledger is a bounded, replicated sequence of entries that is closed for ever; a log is a list of
ledgers, kept as one record in a metastore. Opening a writer fences the one before it.

`shared_logs` is DLOG as other packages use it: logs by name, each with one owner among many
processes (`ownership`, `owned_logs`, `peers`). Below it, `log` is the unbounded log, `ledgers` one
quorum client over any kind of bookie, `bookie` our own bookie, in this process or another, and
`bookkeeper` a client of Apache BookKeeper. The layers are, from the top: this package's modules,
`log`, `bookie` and `bookkeeper`, `ledgers`.

Imports `net`, `disk` and `base`; the metastore is handed in. Start reading at `ledgers/metadata`,
`ledgers/seams`, `ledgers/client`; then `log/meta`, `log/log_writer`; then `ownership`,
`shared_logs`.
"""
