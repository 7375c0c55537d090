"""What can go wrong for a worker that shares shards with others."""

from raftwood.base.errors import Conflict


class LeaseLost(Conflict):
    """The shard is another worker's: what was not saved is processed again there."""

    code = "lease_lost"


class NameTaken(Conflict):
    """Another process runs under this worker's name."""

    code = "worker_name_taken"
