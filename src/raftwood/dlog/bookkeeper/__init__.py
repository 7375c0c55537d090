"""Apache BookKeeper: its bookies' wire protocol, and ledgers' metadata in ZooKeeper.

`bookies` is the seam `Bookies` over `connection`s that speak either of BookKeeper's two protocols:
`wire_v2`, fixed and binary, for adds and plain reads; `wire_v3`, protobuf, for the rest, or for
everything. `metadata_store` is the seam `LedgerMetadataStore` on BookKeeper's own layout. Bookies
that ask for SASL are not supported; TLS is.
"""
