"""What is measured on which system."""

from typing import Final

import msgspec

KEYS: Final = 100_000
VALUE_BYTES: Final = 100
MANY: Final = 100
"""Keys of one MGET or MSET."""

OURS: Final = "zeppelin"
DURABLE: Final = "zeppelin-durable"
REDIS: Final = "redis"
ALWAYS: Final = "redis-always"
ETCD: Final = "etcd"
ONE: Final = "zeppelin-one"
TWO: Final = "zeppelin-two"
OURS_CLUSTER: Final = "zeppelin-cluster-2"
REDIS_CLUSTER: Final = "redis-cluster-3"
SYSTEMS: Final = (OURS, DURABLE, REDIS, ALWAYS, ETCD, ONE, TWO, OURS_CLUSTER, REDIS_CLUSTER)

READS: Final = ("GET", "MGET")
WRITES: Final = ("SET", "INCR", "MSET")
OPERATIONS: Final = ("GET", "SET", "INCR", "MGET", "MSET")
CONNECTIONS: Final = (1, 50, 500)


class Case(msgspec.Struct, frozen=True):
    """One kind of load."""

    operation: str
    connections: int
    pipeline: int

    @property
    def name(self) -> str:
        many = f" of {MANY}" if self.keys > 1 else ""
        return f"{self.operation}{many}, {self.connections} × {self.pipeline}"

    @property
    def keys(self) -> int:
        return MANY if self.operation in ("MGET", "MSET") else 1


CASES: Final = tuple(
    Case(operation, connections, pipeline)
    for operation in OPERATIONS
    for connections in CONNECTIONS
    for pipeline in ((1, 16) if operation in ("MGET", "MSET") else (1, 16, 256))
    # 500 × 16 × 100 keys are 90 MB under way: that is another benchmark.
    if not (operation in ("MGET", "MSET") and connections == 500 and pipeline > 1)
)
CLUSTER_CASES: Final = tuple(
    Case(operation, 50, pipeline) for operation in ("GET", "SET", "INCR") for pipeline in (1, 16)
)


def cases_of(system: str) -> tuple[Case, ...]:
    """Durable systems are asked to write alone; etcd has no pipelines, and no counters."""
    if system in (DURABLE, ALWAYS):
        return tuple(case for case in CASES if case.operation in WRITES)
    if system == ETCD:
        return tuple(case for case in CASES if case.pipeline == 1 and case.operation != "INCR")
    if system in (ONE, TWO, OURS_CLUSTER, REDIS_CLUSTER):
        return CLUSTER_CASES
    return CASES


GROUPS: Final = (
    (OURS, REDIS, ETCD),
    (DURABLE, ALWAYS),
    (ONE, TWO),
    (OURS_CLUSTER, REDIS_CLUSTER),
)
"""Systems that take turns, case by case, and are there at the same time."""
