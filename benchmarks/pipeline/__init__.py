"""Spark's source and sink `loghub` against its Kafka connector; see __main__ for its command."""
