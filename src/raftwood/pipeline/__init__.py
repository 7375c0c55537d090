"""The data pipeline on Spark: streams and tables as DataFrames, and DataFrames into them.

Imports the clients of LogHub and Zeppelin and what they share, `net`, `disk` and `base`; needs the
extra `spark`, but for `read`, `archive.reader` and what these import, which need `arrow` alone.
Start reading at `data_source`, then `offsets` and `source`; for Zeppelin `zeppelin_source` and
`zeppelin_sink`.
"""
