"""The meta server of Zeppelin: who has which partition, agreed on by a raft group.

`rules` is what changes lead to, `deltas` what nodes and clients are told of them. What nodes report
is `heard` by the leader alone, which plans from it: `failover`, `handover`, put together in
`planning` and proposed by `keeper`. `client` is for everybody else.
"""
