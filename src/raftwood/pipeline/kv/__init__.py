"""DataFrames into tables of Zeppelin, for batch and streaming queries: the format `zeppelin`."""
