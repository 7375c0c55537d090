"""DataFrames from and into tables of Zeppelin: the format `zeppelin`.

`table_reader` reads a table as of one checkpoint of each partition; `writers` write, in batch and
streaming queries.
"""
