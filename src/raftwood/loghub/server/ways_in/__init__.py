"""Ways into LogHub that clients of others speak.

OTLP, Loki, Elasticsearch and JSON lines over HTTP, syslog and Fluent Forward on ports of their own.
Each is an edge: a decoder without I/O turns a whole request into `records.Section`s, `records.pack`
makes LogGroups of them, and they are put. Start reading at `records`, then `http_routes` and
`socket_server`.
"""
