"""dragonboat v4 behind a small TCP protocol of ours, with as many groups as asked for."""

import socket
import struct

from benchmarks.harness.system import Layout, Load
from benchmarks.peers import programs

REQUEST = struct.Struct("<IQI")
LENGTH = struct.Struct("<I")
ID_BYTES = 8
NO_GROUP = (1 << 32) - 1
"""Asks who leads; see benchmarks/peers/dragonboat/wire.go."""
ASK_TIMEOUT_S = 2.0


class DragonboatSystem:
    name = "dragonboat"
    groups_max = 1 << 16

    def __init__(self) -> None:
        self._program = ""

    def prepare(self) -> str:
        self._program = programs.go_program("dragonboat")
        version = programs.go_module_version("github.com/lni/dragonboat/v4")
        return (
            f"dragonboat {version}, fsync on, log database Tan for one group and Pebble, its "
            "default, for many, RTTMillisecond 100, heartbeat 100 ms, election 1 s, as many "
            "workers and logs as cores, CheckQuorum, no quiescing, no snapshots, in-memory "
            "state machine, NoOP sessions; a client process of ours, one connection to each node"
        )

    def node_command(self, layout: Layout, node: int) -> list[str]:
        return [
            self._program,
            "node",
            f"--number={node + 1}",
            f"--raft={','.join(layout.peer_addresses())}",
            f"--listen={layout.client_addresses()[node]}",
            f"--folder={layout.node_folder(node)}",
            f"--groups={layout.groups}",
        ]

    def leaders(self, layout: Layout) -> list[int | None]:
        with socket.create_connection(
            ("127.0.0.1", layout.client_ports[0]), timeout=ASK_TIMEOUT_S
        ) as connection:
            connection.sendall(REQUEST.pack(REQUEST.size - LENGTH.size, 0, NO_GROUP))
            (length,) = LENGTH.unpack(_exactly(connection, LENGTH.size))
            numbers = _exactly(connection, length)[ID_BYTES:]
        return [number - 1 if number else None for number in numbers]

    def load_command(self, layout: Layout, load: Load, leader: int) -> list[str]:  # noqa: ARG002
        nodes = ",".join(layout.client_addresses())
        return [self._program, "load", f"--nodes={nodes}", f"--groups={layout.groups}",
                *load.flags()]  # fmt: skip


def _exactly(connection: socket.socket, size: int) -> bytes:
    received = b""
    while len(received) < size:
        part = connection.recv(size - len(received))
        if not part:
            raise ConnectionError("the node closed the connection")
        received += part
    return received
