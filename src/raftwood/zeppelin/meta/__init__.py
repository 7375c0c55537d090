"""The meta server of Zeppelin: a raft group that decides which node has which partition.

Start reading at `changes`, then `topology_state` and `partition_rules`: the replicated rules.
`state_machine` runs them on raft. On the leader it also plans `failover` and `migration` from the
reports in `heartbeats`. `client` queries the group; `plans`, `balancer` and `manager` serve
operators. Imports no node.
"""
