"""What Redis's commands do here.

`execution` leads from a request to its answer, `registry` has the table. Commands on keys are pure:
they read and write through a `turn`, which becomes one record of the binlog. The others are about a
client's `session`, the node, or the cluster.
"""
