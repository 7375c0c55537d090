"""The archive of a logstore: sealed ranges of its shards as Parquet or Delta, and a manifest.

Start reading at `manifest` and `archive_rules`.
"""
