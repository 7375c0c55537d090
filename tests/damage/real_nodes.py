"""Cells of real nodes of Zeppelin: three with one partition, whose writes two replicas ack."""

import asyncio
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import redis
from redis.exceptions import RedisClusterException

from raftwood.base.errors import RaftwoodError
from raftwood.zeppelin.model import TableConfig
from tests.damage import nodes
from tests.damage.cells import LOG_FILES, Outcome, Pick, Seen, judged
from tests.damage.real_folders import (
    ALONE_S,
    SERVED_S,
    WHOLE_S,
    Kept,
    RealScene,
    files_of,
    refusals,
    settled,
)
from tests.kits.processes import StoreProcess
from tests.kits.zeppelin.processes import KvProcesses, Login

_TABLE: Final = "kept"
_CONFIG: Final = TableConfig(partitions=1, replicas=3, ack="synced", min_replicas=2)
_PADDING: Final = "." * 2_000
_SETTINGS: Final[Mapping[str, Any]] = {
    "zeppelin_store.binlog_bytes_min": 1 << 10,
    "zeppelin_store.binlog_bytes_max": 4 << 10,
    "zeppelin_store.flush_bytes": 1 << 10,
    "zeppelin_store.flush_interval_ms": 500,
    "zeppelin_store.value_bytes_max": 4 << 10,
}
"""So small that the binlog does not have what the engine has."""
_LOG: Final = (
    "--set=log.segment_bytes=65536",
    "--set=log.flush_bytes_max=8192",
    "--set=log.cache_bytes_max=0",
)
_PURGED_S: Final = 2.0
"""Engines are flushed and binlogs purged meanwhile."""
_SOCKET_S: Final = 5.0


def _engine_file(begin: str, end: str) -> Pick:
    """The newest file of the engine with such a name."""

    def pick(files: Mapping[str, bytes]) -> str | None:
        found = [
            path
            for path, data in files.items()
            if "/engines/" in path
            and Path(path).name.startswith(begin)
            and path.endswith(end)
            and data
        ]
        return max(found, default=None)

    return pick


FILES: Final[dict[str, Pick]] = {
    **LOG_FILES,
    "engine's table": _engine_file("", ".sst"),
    "engine's MANIFEST": _engine_file("MANIFEST", ""),
    "engine's CURRENT": _engine_file("CURRENT", ""),
}


class RealNodes(RealScene):
    files = FILES

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        self._cluster = KvProcesses(
            folder, stores=1, nodes=3, settings=_SETTINGS, has_proxies=False
        )
        self._logins: dict[bool, Login] = {}
        self._orders: dict[bool, list[StoreProcess]] = {}

    @property
    def helpers(self) -> Sequence[StoreProcess]:
        return list(self._cluster.stores.values())

    @property
    def processes(self) -> Sequence[StoreProcess]:
        return list(self._cluster.nodes.values())

    def order(self) -> Sequence[StoreProcess]:
        """The master first."""
        return self._orders[self.lags]

    # Filling.

    def fill(self, kept: Kept, *, lags: bool) -> None:
        cluster = self._cluster
        cluster.stores[1].start()
        self._begin(*self.processes)
        self._logins[lags] = cluster.create_table(_TABLE, _CONFIG)
        self._write(nodes.KEYS)
        master = cluster.nodes[cluster.master_of(_TABLE, 0)]
        others = [each for each in self.processes if each is not master]
        self._orders[lags] = [master, *others]
        kept.note_older()
        if lags:
            others[1].kill_now()
        self._write(nodes.KEYS)
        time.sleep(_PURGED_S)
        kept.note_older()
        self._write(nodes.LAST_KEYS)
        for each in (master, *others):
            if each.is_running:
                if lags:
                    assert each.stop() == 0, each.tail()
                else:
                    each.kill_now()
        assert cluster.stores[1].stop() == 0

    def _begin(self, *processes: StoreProcess) -> None:
        for each in processes:
            each.begin(*_LOG)
        asyncio.run(settled(*processes))

    def _write(self, count: int) -> None:
        client = self._connected()
        try:
            for _ in range(count):
                number = len(self.acked)
                value = f"v{number}{_PADDING}"
                assert client.set(f"key{number}", value)
                self.acked.append(value.encode())
        finally:
            client.close()

    def _connected(self) -> Any:
        return self._cluster.redis(self._logins[self.lags], socket_timeout=_SOCKET_S)

    # Observing.

    def observe(self) -> Seen:
        first, second, third = self.order()
        engines = self._engines()
        self._cluster.stores[1].start()
        values: list[bytes] | None = None
        for timeout_s, begun in ((ALONE_S, (first, third)), (SERVED_S, (second,))):
            self._begin(*begun)
            values = self._served(timeout_s)
            if values is not None and (bad := judged(values, self.acked, set(self.acked))):
                return bad
        if values is None:
            return Seen(Outcome.OPERATOR, refusals(self.processes) or self._problems())
        problem = self._until_whole()
        if problem or not all(each.is_running for each in self.processes):
            return Seen(Outcome.REFUSED, refusals(self.processes) or problem)
        has_repaired = bool(self._engines() - engines)
        return Seen(Outcome.REPAIRED if has_repaired else Outcome.UNHARMED)

    def _engines(self) -> set[str]:
        """Of the damaged nodes; one that lagged takes a whole copy for that alone."""
        harmed = [each for each in self.harmed if not self.lags or each is not self.order()[2]]
        return {
            str(Path(path).parent)
            for each in harmed
            for path in files_of(each.folder)
            if path.endswith("/CURRENT")
        }

    def _served(self, timeout_s: float) -> list[bytes] | None:
        """What clients are given now; None where nobody takes writes."""
        deadline = time.monotonic() + timeout_s
        while sum(each.is_running for each in self.processes) >= 2:
            try:
                return self._values()
            except (redis.RedisError, RedisClusterException, OSError):
                if time.monotonic() > deadline:
                    return None
                time.sleep(0.2)
        return None

    def _values(self) -> list[bytes]:
        client = self._connected()
        try:
            client.set("probe", "probe")
            found = [client.get(f"key{number}") for number in range(len(self.acked))]
            return [value for value in found if value is not None]
        finally:
            client.close()

    def _until_whole(self) -> str:
        """What is wrong with a copy in the end; nothing where all have all."""
        deadline = time.monotonic() + WHOLE_S
        while problem := self._problems():
            if time.monotonic() > deadline:
                return problem
            time.sleep(0.2)
        return ""

    def _problems(self) -> str:
        told = []
        for number, node in self._cluster.nodes.items():
            if not node.is_running:
                continue
            try:
                status = self._cluster.status(number)
            except RaftwoodError as error:
                told.append(f"{node.name}: {error.message}")
                continue
            if status.problem:
                told.append(f"{node.name}: {status.problem}")
            if not status.copies or not all(copy.is_whole for copy in status.copies):
                told.append(f"{node.name} has not all")
        return "; ".join(told)
