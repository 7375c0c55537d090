"""clogs: applications ship log lines, by the names of their files, to a ring of log servers.

A file's name picks its server by consistent hashing; a server that stops answering pings leaves the
ring until it answers again; the configuration changes while the application runs; and what was
taken is stored once, in order per file, or counted as dropped by the policy that drops.

Imports `net`, `disk` and `base` alone. Start reading at `model` (servers, rules of a ring),
`ring/ketama`, `ha/rules` and `frames`; then `client/shipping_rules` and `client/shipper`. `tail`
reads files, `receiver` is the servers' side: it writes to a `Sink`, handed in by `app`.
"""
