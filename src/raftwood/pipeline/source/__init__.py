"""Logstores as DataFrames, for batch and streaming queries."""
