"""Raft groups over the network: what clients ask of a store, and the client that asks.

`protocol` is what travels, `service` the store's side, `client` the other one.
"""
