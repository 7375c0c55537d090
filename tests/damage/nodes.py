"""Cells of Zeppelin's nodes: three of them with one partition, whose writes two replicas ack."""

import asyncio
import random
from collections.abc import Mapping
from typing import Final

from raftwood.base.environment import Environment
from raftwood.base.errors import StoreError
from raftwood.testing import Simulation, simulate
from raftwood.zeppelin.model import TableConfig
from raftwood.zeppelin.settings import StoreSettings
from tests.damage.cells import (
    LOG_FILES,
    Cell,
    Outcome,
    Pick,
    Seen,
    harm_one_of,
    judged,
    saved,
    victims,
)
from tests.kits.zeppelin.engines import PAIRS
from tests.kits.zeppelin.node_cluster import Cluster
from tests.kits.zeppelin.simulation.clients import Connection
from tests.kits.zeppelin.simulation.node import FOLDER, NodeMachine

NAMES: Final = ("n1", "n2", "n3")
KEYS: Final = 40
"""Written before one and before the other of two older copies."""
LAST_KEYS: Final = 10
_PADDING: Final = "." * 300
_CONFIG: Final = TableConfig(partitions=1, replicas=3, ack="synced", min_replicas=2)
_SETTINGS: Final = StoreSettings(
    binlog_bytes_min=1 << 10, binlog_bytes_max=4 << 10, flush_bytes=1 << 10, flush_interval_ms=500
)
"""So small that the binlog does not have what the engine has."""
_ALONE_S: Final = 15.0
"""For so long the damaged node and the one that lags are without the other."""
_SERVED_S: Final = 60.0
_WHOLE_S: Final = 60.0


def _engine(files: Mapping[str, bytes]) -> str | None:
    return next((path for path in files if path.endswith(f"/{PAIRS}")), None)


FILES: Final[dict[str, Pick]] = {**LOG_FILES, "engine": _engine}


class HaltingNode(NodeMachine):
    """Notes why it refuses to start."""

    refusal = ""

    async def _program(self, environment: Environment) -> None:
        try:
            await super()._program(environment)
        except StoreError as error:
            self.refusal = error.message


def run_node_cell(cell: Cell, seed: int) -> Seen:
    """Even seeds: a slave was away for the last writes, the others were stopped in order. Odd ones:
    all had everything and were killed.
    """

    async def scenario(simulation: Simulation) -> Seen:
        cluster = Cluster(
            simulation, config=_CONFIG, names=NAMES, settings=_SETTINGS, node_type=HaltingNode
        )
        planning = asyncio.create_task(cluster.meta.run())
        try:
            await cluster.start()
            return await _Scene(cluster, cell, seed).run()
        finally:
            for connection in cluster.connections:
                connection.close()
            for node in cluster.nodes.values():
                node.break_down(loses_power=False)
            planning.cancel()
            await asyncio.gather(planning, return_exceptions=True)

    return simulate(f"{cell} {seed}", scenario, virtual_seconds_max=2_000.0).result


class _Scene:
    def __init__(self, cluster: Cluster, cell: Cell, seed: int) -> None:
        self._cluster = cluster
        self._cell = cell
        self._lags = seed % 2 == 0
        self._random = random.Random(f"{cell} {seed}")
        self._wait_until = cluster.simulation.wait_until
        self._written: set[bytes] = set()
        self._acked: list[bytes] = []
        self._connection: Connection | None = None
        self._connected_to = ""

    async def run(self) -> Seen:
        cluster = self._cluster
        await self._wait_until(lambda: all(map(self._is_whole, cluster.nodes.values())))
        await self._write(KEYS)
        master = cluster.master
        others = [node for node in cluster.nodes.values() if node is not master]
        nodes = [master, *others]
        older = {node.name: self._files(node) for node in nodes}
        if self._lags:
            nodes[2].break_down(loses_power=False)
        await self._write(KEYS)
        await asyncio.sleep(2)  # engines are flushed, binlogs purged
        for node in nodes:
            older[node.name] |= self._files(node)
        await self._write(LAST_KEYS)
        engines = {node.name: self._engine_of(node) for node in nodes}
        await self._stop(nodes)
        hits = [
            self._harm(nodes[number], older[nodes[number].name])
            for number in victims(self._cell.scope, range(3))
        ]
        return await self._observe(nodes, engines) if any(hits) else Seen(Outcome.NOT_HIT)

    async def _stop(self, nodes: list[NodeMachine]) -> None:
        if self._lags:
            for node in nodes[:2]:
                node.stop()
            await self._wait_until(lambda: not any(node.machine.running for node in nodes))
        else:
            await asyncio.sleep(self._random.random() * 2)
            for node in nodes:
                node.break_down(loses_power=False)

    def _files(self, node: NodeMachine) -> dict[str, bytes]:
        return saved(node.machine.disk.file_system, FOLDER)

    def _harm(self, node: NodeMachine, older: dict[str, bytes]) -> bool:
        return harm_one_of(
            node.machine.disk.file_system,
            FOLDER,
            FILES[self._cell.file],
            self._cell.damage,
            older,
            self._random,
        )

    async def _observe(self, nodes: list[NodeMachine], engines: dict[str, str]) -> Seen:
        nodes[0].start()
        nodes[2].start()
        is_served = False
        for timeout_s, others in ((_ALONE_S, nodes[1:2]), (_SERVED_S, [])):
            is_served = await self._writes_are_taken(timeout_s)
            values = await self._values(timeout_s) if is_served else None
            if values is not None and (bad := judged(values, self._acked, self._written)):
                return bad
            for node in others:
                node.start()
        refusals = [
            f"{node.name}: {node.refusal}"
            for node in nodes
            if isinstance(node, HaltingNode) and node.refusal
        ]
        if not is_served:
            problems = [f"{node.name}: {node.problem()}" for node in nodes if node.problem()]
            return Seen(Outcome.OPERATOR, "; ".join(refusals or problems))
        try:
            await self._wait_until(lambda: all(map(self._is_whole, nodes)), timeout_s=_WHOLE_S)
        except TimeoutError:
            return Seen(Outcome.REFUSED, "; ".join(refusals))
        # One that lagged takes a whole copy for that alone.
        last = 2 if self._lags else 3
        harmed = [nodes[number] for number in victims(self._cell.scope, range(last))]
        has_repaired = any(self._engine_of(node) != engines[node.name] for node in harmed)
        return Seen(Outcome.REPAIRED if has_repaired else Outcome.UNHARMED)

    def _is_whole(self, node: NodeMachine) -> bool:
        replica = node.replica(self._cluster.partition)
        if replica is None:
            return False
        report = replica.report()
        return report.is_whole and (report.is_streaming or replica.may_write)

    def _engine_of(self, node: NodeMachine) -> str:
        replica = node.replica(self._cluster.partition)
        return "" if replica is None else replica.store.home.held.engine  # type: ignore[attr-defined]

    # What clients see.

    async def _write(self, count: int) -> None:
        for _ in range(count):
            number = len(self._written)
            value = f"v{number}{_PADDING}".encode()
            self._written.add(value)
            answer = await self._ask("SET", f"key{number}", value.decode(), timeout_s=30)
            assert answer == "OK", answer
            self._acked.append(value)

    async def _writes_are_taken(self, timeout_s: float) -> bool:
        return await self._ask("SET", "probe", "probe", timeout_s=timeout_s) == "OK"

    async def _values(self, timeout_s: float) -> list[bytes] | None:
        values: list[bytes] = []
        for number in range(len(self._written)):
            answer = await self._ask("GET", f"key{number}", timeout_s=timeout_s)
            if isinstance(answer, bytes):
                values.append(answer)
            elif answer is not None:
                return None
        return values

    async def _ask(self, *command: str, timeout_s: float) -> object:
        """The answer of the master, or the last error in this time."""
        cluster = self._cluster
        answer: object = "nobody serves"
        deadline = cluster.simulation.now + timeout_s
        while cluster.simulation.now < deadline:
            if cluster.master_serves:
                try:
                    async with asyncio.timeout(10):
                        connection = await self._connect(cluster.master.name)
                        (answer,) = await connection.ask(command)
                except (OSError, TimeoutError, EOFError) as error:
                    self._connected_to, answer = "", f"{error!r}"
                if answer == "OK" or not isinstance(answer, str):
                    return answer
            await asyncio.sleep(0.2)
        return answer

    async def _connect(self, name: str) -> Connection:
        if self._connection is None or self._connected_to != name:
            self._connection, _ = await self._cluster.connect(name)
            self._connected_to = name
        return self._connection
