"""The inside of a gateway: metadata, streams, consumer groups, and the protocols that reach them.

Imports `base`, `net` and what LogHub's packages share, and no client. Start reading at `gateway`,
then `streams`; `listeners` has the ports.
"""
