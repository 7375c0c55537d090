"""What the harness asks of a replicated system, and the orders that it gives.

A system is a small class: how a node is started, who leads, and which command loads it. The load is
a process of its own that prints lines of JSON on standard output:

    {"event": "warm"}                                   once, when the measurement begins
    {"event": "result", "count": 1, "elapsed_s": 6.0, "p50_ms": 0.9, "p99_ms": 1.8,
     "client_cpu_s": 1.2}                               at the end of a load
    {"event": "failover", "first_ack_ms": 1200.0}       instead, if it was told to kill a process

`count`, the latencies and the CPU are of appends sent after "warm". A load that is told to kill
keeps its appends in flight, kills the process with SIGKILL when warm, then starts a write every
5 ms at one node after the other; the first acked of those counts.
"""

from typing import Protocol, TypeVar

import msgspec

NODES = 3


class NotAvailable(Exception):
    """The system cannot be run on this machine; says why."""


class Layout(msgspec.Struct, frozen=True, kw_only=True):
    """One cluster of three nodes on the loopback interface."""

    folder: str
    groups: int
    client_ports: tuple[int, ...]
    peer_ports: tuple[int, ...]

    def node_folder(self, node: int) -> str:
        return f"{self.folder}/node-{node}"

    def node_log(self, node: int) -> str:
        """What the node prints."""
        return f"{self.folder}/node-{node}.log"

    def client_addresses(self) -> list[str]:
        return [f"127.0.0.1:{port}" for port in self.client_ports]

    def peer_addresses(self) -> list[str]:
        return [f"127.0.0.1:{port}" for port in self.peer_ports]


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """Keep so many appends of so many bytes in flight for so long."""

    in_flight: int
    """Of all clients together."""
    payload_bytes: int
    warm_s: float
    seconds: float
    clients: int = 1
    shards: int = 1
    """Appends are spread over the first so many groups of the cluster."""
    is_batched: bool = False
    """Records go as fast as the client takes them, which batches them; `in_flight` bounds them."""
    way: str = ""
    """Which of its ways a client takes, where it has several."""
    kill: int | None = None
    """The process to kill when warm, instead of measuring the load."""

    def flags(self) -> list[str]:
        """The flags that each of our load programs understands."""
        flags = [f"--in-flight={self.in_flight}", f"--bytes={self.payload_bytes}"]
        flags += [f"--warm={self.warm_s}s", f"--seconds={self.seconds}s"]
        flags += [f"--clients={self.clients}"] if self.clients > 1 else []
        flags += [f"--shards={self.shards}"] if self.shards > 1 else []
        flags += ["--batched"] if self.is_batched else []
        flags += [f"--way={self.way}"] if self.way else []
        return flags if self.kill is None else [*flags, f"--kill={self.kill}"]


class Prepared(Protocol):
    """Whatever is compared with others."""

    @property
    def name(self) -> str: ...

    def prepare(self) -> str:
        """Fetch and build what is needed; the version and the settings, for the report.

        Raises NotAvailable if this machine cannot run it.
        """


class System(Prepared, Protocol):
    """One replicated system; nodes are counted from 0 to 2."""

    @property
    def groups_max(self) -> int:
        """How many raft groups one cluster can have."""

    def node_command(self, layout: Layout, node: int) -> list[str]:
        """The command of one node; its folder exists. It runs until it is killed."""

    def leaders(self, layout: Layout) -> list[int | None]:
        """For each group, the node that leads it; raises OSError while nodes are not up yet.

        If clients make a system's groups, this makes them first.
        """

    def load_command(self, layout: Layout, load: Load, leader: int) -> list[str]:
        """The command of a load; `leader` is the node that leads the first group."""


SomeSystem = TypeVar("SomeSystem", bound=Prepared)
