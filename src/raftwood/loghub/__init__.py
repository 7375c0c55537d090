"""LogHub: streams of logs. Projects hold logstores, a logstore's shards are logs.

Takes a `MetaStore` and `Logs` as seams, handed in by `app`; imports `net` and `base` alone. Start
reading at `model` and `batches`, then `server/streams`; for users, `client`.
"""
