"""Logservice on three nodes against etcd and Kafka; see __main__ for its command."""
