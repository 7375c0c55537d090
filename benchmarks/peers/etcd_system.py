"""etcd as Debian packages it: one raft group, puts through its Go client."""

import http.client
import json
from typing import Any

import msgspec

from benchmarks.harness.system import NODES, Layout, Load
from benchmarks.peers import programs

QUOTA_BYTES = 8 << 30
"""Above the default of 2 GB, which a few runs with 64 kB values would reach; no effect on speed."""
ASK_TIMEOUT_S = 2.0


class EtcdSystem:
    name = "etcd"
    groups_max = 1
    has_batches = False
    warm_up_s = 3.0

    def __init__(self, *, has_one_client: bool = False) -> None:
        """With one client the leader's death is as a user sees it, whose client knows all nodes."""
        self._has_one_client = has_one_client
        self._program = self._load_program = ""

    def prepare(self) -> str:
        self._program, package = programs.etcd()
        self._load_program = programs.go_program("etcd_load")
        client = programs.go_module_version("go.etcd.io/etcd/client/v3")
        return (
            f"etcd-server {package} of Debian, fsync on, heartbeat 100 ms and election 1 s (its "
            f"defaults); puts through client/v3 {client}, one connection to the leader"
        )

    def node_command(self, layout: Layout, node: int) -> list[str]:
        peer, client = layout.peer_addresses(), layout.client_addresses()
        members = ",".join(f"n{other}=http://{peer[other]}" for other in range(NODES))
        return [
            self._program,
            f"--name=n{node}",
            f"--data-dir={layout.node_folder(node)}",
            f"--listen-peer-urls=http://{peer[node]}",
            f"--initial-advertise-peer-urls=http://{peer[node]}",
            f"--listen-client-urls=http://{client[node]}",
            f"--advertise-client-urls=http://{client[node]}",
            f"--initial-cluster={members}",
            f"--quota-backend-bytes={QUOTA_BYTES}",
            "--logger=zap",
            "--log-level=error",
        ]

    def leaders(self, layout: Layout) -> list[int | None]:
        for node, port in enumerate(layout.client_ports):
            status = _status(port)
            # The gateway leaves out what is zero: without a leader the field is missing.
            if status.get("leader") == status["header"]["member_id"]:
                return [node]
        return [None]

    def load_command(self, layout: Layout, load: Load, leader: int) -> list[str]:
        nodes = ",".join(layout.client_addresses())
        # One connection for all clients: 64 of them make etcd slower.
        shared = msgspec.structs.replace(load, clients=1)
        command = [self._load_program, f"--nodes={nodes}", f"--leader={leader}", *shared.flags()]
        return [*command, "--one-client"] if self._has_one_client and load.kill else command


def _status(port: int) -> dict[str, Any]:
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=ASK_TIMEOUT_S)
    try:
        connection.request("POST", "/v3/maintenance/status", body="{}")
        response = connection.getresponse()
        if response.status != http.client.OK:
            raise ConnectionError(f"etcd answers with status {response.status}")
        status: dict[str, Any] = json.loads(response.read())
        return status
    except http.client.HTTPException as problem:
        raise ConnectionError(str(problem)) from problem
    finally:
        connection.close()
