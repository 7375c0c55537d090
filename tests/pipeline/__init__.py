"""Tests of the pipeline with a real Spark, against a real server process."""
