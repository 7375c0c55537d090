"""The data pipeline on Spark: streams as DataFrames, and DataFrames into streams.

Imports LogHub's client and what it shares, `net`, `disk` and `base`; needs the extra `spark`. Start
reading at `data_source`, then `offsets` and `source/stream_reader`.
"""
