"""Workers that share a logstore's shards by leases, kept in a store of the user's choice.

Start reading at `leases`, the model; `rules` decides, without I/O; `lease_store` is the seam to
what keeps the rows, and `stores` has what stands behind it.
"""
