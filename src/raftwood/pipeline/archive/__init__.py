"""The archive of a logstore: sealed ranges of its shards as Parquet or Delta, and a manifest.

`spark` alone needs Spark. Start reading at `manifest` and `rules`, then `archiver`.
"""
