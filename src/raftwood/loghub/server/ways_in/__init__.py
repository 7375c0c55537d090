"""Ways into LogHub that others' clients speak: OTLP, Loki, Elasticsearch, JSON lines, syslog, Fluent.

Each is an edge: a decoder without I/O turns a whole request into `records.Section`s, `records.pack`
makes LogGroups of them, and they are put. Start reading at `records`, then `http_routes` and
`socket_server`.
"""
