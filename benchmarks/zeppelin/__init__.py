"""Zeppelin beside Redis and etcd."""
