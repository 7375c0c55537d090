"""LogHub: streams of logs. Projects hold logstores, a logstore's shards are logs.

Takes a `MetaStore` and `Logs` as seams, handed in by `server`; imports `base`, `net` and
`delivery`. Start reading at `model` and `batches`, then `server.streams`; for users, `client` and
`consumer`.
"""
