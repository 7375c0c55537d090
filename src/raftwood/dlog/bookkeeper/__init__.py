"""A client of Apache BookKeeper: its bookies' wire protocols, and metadata of ledgers in ZooKeeper.

`bookies` is the seam `Bookies` over a `connection` in either of BookKeeper's two protocols:
`binary_protocol` (the second), fixed fields, for adds and plain reads; `protobuf_protocol` (the
third) for the rest, or for everything. `metadata_store` is the seam `LedgerMetadataStore` on
BookKeeper's own layout. Bookies that ask for SASL are not supported; TLS is. Imports `ledgers`,
`net` and `base`. `raftwood.dlog.bookkeeper.bookies.connect_bookkeeper` is the way in; load it
lazily, for it needs kazoo.
"""
