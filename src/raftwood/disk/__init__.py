"""A process's disk storage: the data folder, the shared segment log, the key-value engine.

May import `base` only. Start with `store` (a data folder with its log open) and `segment_log`;
`real_environment` does the real file operations, `rocksdb` is the `KvEngine`, `inspection` serves
`raftwood store check`.
"""
