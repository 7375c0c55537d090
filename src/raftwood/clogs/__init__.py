"""clogs: applications ship log lines, by the names of their files, to a ring of log servers.

A file's name selects its server by consistent hashing. A server that stops answering pings leaves
the ring until it answers again. The configuration changes while the application runs. A line that
was accepted is stored once, in order per file, or counted as dropped by the policy that drops.

`client` ships lines, `tail` follows files; neither imports a server. `receiver`, `file_sink` and
`configuration_store` are the servers' side: a receiver writes to a `Sink` that its owner passes in.

Imports `delivery`, `net`, `disk` and `base` alone. Start reading at `configuration`, `frames`,
`ring` and `health`; then `client/shipping_rules` and `client/shipper`; `tail/rules` and
`tail/tailer`; `receiver`.
"""
