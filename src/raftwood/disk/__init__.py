"""What a process keeps on disk: the data folder, the shared segment log, the key-value engine.

May import `base` only. Start with `store` (a data folder with its log open) and `segment_log`;
`real_environment` is how bytes really get to disk, `rocksdb` the `KvEngine`, `inspection` what
`raftwood store check` shows.
"""
