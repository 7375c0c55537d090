"""The meta server of Zeppelin: which node has which partition, agreed on by a raft group.

Start reading at `changes`, then `topology_state` and `partition_rules`: what is replicated.
`state_machine` puts that on raft and plans for the leader by what `heartbeats` knows: `failover`
and `migration`. `client` asks the group; `plans`, `balancer` and `manager` are for operators.
Imports no node.
"""
