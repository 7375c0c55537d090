"""DataFrames into logstores, for batch and streaming queries."""
