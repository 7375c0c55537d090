"""Three stores as processes: started, stopped, killed and paused, and asked who leads."""

import asyncio
import json
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Self

from raftwood.base.environment import Environment
from raftwood.base.errors import RaftwoodError
from raftwood.net.identity import OPERATOR_ROLE
from raftwood.net.stores import ClientNetwork
from raftwood.raft.client import AsyncRaftClient
from raftwood.raft.node_host import GroupStatus
from tests.kits.ports import LOCAL, free_ports
from tests.kits.processes import StoreProcess
from tests.kits.raft.node import CLIENT_SECRET, CLUSTER, GROUPS

STORES = (1, 2, 3)
LEADER_S_MAX = 60.0
CLIENT_NETWORK = ClientNetwork(cluster=CLUSTER, secret=CLIENT_SECRET, role=OPERATOR_ROLE)


class Node(StoreProcess):
    """A store of these tests' own program, which prints what it has come to."""

    def begin_among(self, members: Mapping[int, str], wrapper: Sequence[str] = ()) -> None:
        program = (sys.executable, "-m", "tests.kits.raft.node")
        arguments = (str(self.store), self.address, str(self.folder), json.dumps(members))
        self.launch((*wrapper, *program, *arguments))

    @property
    def is_ready(self) -> bool:
        if words := self._said("ready"):
            self.pid = int(words)
        return self.is_running and bool(words)

    def _said(self, what: str) -> str:
        for line in self.output.read_text().splitlines():
            word, _, rest = line.partition(" ")
            if word == what:
                return rest or what
        return ""

    async def end_well(self) -> int:
        """End in order; answers how many tasks the process had."""
        self.signal(signal.SIGTERM)
        assert await self.ended() == 0, self.tail()
        assert self._said("closed")
        return int(self._said("tasks"))


class Cluster:
    """Use it as a context manager; `start` comes after addresses were put in between, if any."""

    def __init__(
        self, environment: Environment, folder: Path, hosts: Mapping[int, str] | None = None
    ) -> None:
        ports = free_ports(len(STORES))
        self.nodes = {
            store: Node(
                f"store-{store}", store, folder, f"{(hosts or {}).get(store, LOCAL)}:{ports.pop()}"
            )
            for store in STORES
        }
        self.members = {store: node.address for store, node in self.nodes.items()}
        """Where the stores reach one another; a proxy takes a place here."""
        self._environment = environment
        self._askers: dict[int, AsyncRaftClient] = {}
        """By store, each of which knows this one alone: no other may answer in its place."""
        self._operator: AsyncRaftClient | None = None

    async def __aenter__(self) -> Self:
        for store in STORES:
            self._askers[store] = self.client(store)
        self._operator = self.client()
        return self

    async def __aexit__(self, *_: object) -> None:
        for asker in self._askers.values():
            await asker.close()
        if self._operator is not None:
            await self._operator.close()
        for node in self.nodes.values():
            node.discard()

    async def start(self, wrappers: Mapping[int, Sequence[str]] | None = None) -> None:
        for store, node in self.nodes.items():
            node.begin_among(self.members, (wrappers or {}).get(store, ()))
        for node in self.nodes.values():
            await node.ready()

    async def restart(self, *stores: int, wrapper: Sequence[str] = ()) -> None:
        for store in stores:
            self.nodes[store].begin_among(self.members, wrapper)
        for store in stores:
            await self.nodes[store].ready()

    def client(self, *stores: int, network: ClientNetwork = CLIENT_NETWORK) -> AsyncRaftClient:
        addresses = {store: self.nodes[store].address for store in stores or STORES}
        return AsyncRaftClient(self._environment, network, addresses)

    # Questions

    async def read_at(self, store: int, group: int, query: bytes) -> bytes:
        """What one store's replica holds, be it behind or not."""
        return await self._askers[store].read(group, query, timeout_ms=10_000, is_stale=True)

    async def statuses(self, group: int, stores: Sequence[int] = STORES) -> list[GroupStatus]:
        """Of the stores that answer."""
        found = []
        for store in stores:
            if not self.nodes[store].is_running:
                continue
            try:
                admin = self._askers[store].admin
                found.append(await admin.status(group, store=store, timeout_ms=500))
            except RaftwoodError:
                continue
        return found

    async def leader(self, group: int, stores: Sequence[int] = STORES) -> int:
        """Who leads a group, once somebody does."""
        deadline = time.monotonic() + LEADER_S_MAX
        while True:
            leading = [each for each in await self.statuses(group, stores) if each.role == "leader"]
            if leading:
                return max(leading, key=lambda each: each.term).store
            assert time.monotonic() < deadline, f"nobody leads group {group}"
            await asyncio.sleep(0.02)

    async def let_lead(self, store: int, groups: Sequence[int] = GROUPS) -> None:
        """One store leads these groups from now on."""
        assert self._operator is not None
        deadline = time.monotonic() + LEADER_S_MAX
        for group in groups:
            while await self.leader(group) != store:
                assert time.monotonic() < deadline, f"store {store} does not lead group {group}"
                try:
                    await self._operator.admin.transfer(group, store, timeout_ms=2_000)
                except RaftwoodError:
                    await asyncio.sleep(0.05)
