"""Raft on three nodes against etcd and dragonboat; see __main__ for its command."""
