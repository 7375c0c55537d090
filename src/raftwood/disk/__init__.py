"""What a store keeps on disk: the shared segment log, the key-value engine, the data folder.

May import `base` only. Start with `segment_log`; `thread_files` is how bytes really get to disk,
`folder` is what surrounds them.
"""
