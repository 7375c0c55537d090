"""Damage to the files of a simulated store, and what is awaited after it."""

from collections.abc import Callable, Coroutine
from typing import Any

from raftwood.base.environment import Environment
from raftwood.base.errors import StoreError
from raftwood.disk.store import decode_identity
from raftwood.raft.group_log import RepairStage, decode_state
from raftwood.testing import Machine
from tests.kits.raft.host_cluster import GROUP, Cluster

STORE = "/data/store"


class HaltingCluster(Cluster):
    """Notes which stores refuse to start, and why."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.halts: dict[int, str] = {}

    def _program(
        self, store: int, *, joins: bool
    ) -> Callable[[Environment], Coroutine[Any, Any, None]]:
        program = super()._program(store, joins=joins)

        async def guarded(environment: Environment) -> None:
            try:
                await program(environment)
            except StoreError as error:
                self.halts[store] = error.message

        return guarded


def files_of(machine: Machine, ending: str) -> list[str]:
    """Paths in the store's folder, oldest first."""
    files = machine.disk.file_system.files
    return sorted(path for path in files if path.startswith(STORE) and path.endswith(ending))


def log_files(machine: Machine, ending: str) -> list[str]:
    """As `files_of`, of the log in use: damaged ones are kept beside it."""
    stamp = machine.disk.file_system.contents(f"{STORE}/IDENTITY")
    log = decode_identity(stamp, path="IDENTITY").log
    return [path for path in files_of(machine, ending) if path.startswith(f"{STORE}/{log}/")]


def snapshots_of(machine: Machine, group: int = GROUP) -> list[str]:
    return [path for path in files_of(machine, ".snapshot") if f"/{group}-" in path]


def flip(machine: Machine, path: str, *, share: float, bit: int = 3) -> None:
    """Flip a bit at a share of a file's length."""
    length = machine.disk.file_system.files[path].cached.length
    machine.disk.flip_bit(path, offset=int(share * (length - 1)), bit=bit)


def flip_text(machine: Machine, path: str, text: bytes) -> None:
    """Flip a bit where a text stands first in a file."""
    offset = machine.disk.file_system.contents(path).index(text)
    machine.disk.flip_bit(path, offset=offset + 1, bit=1)


def is_whole(cluster: Cluster, store: int, group: int = GROUP) -> bool:
    """Whether a store's replica runs, is a voter, and has no repair to go on with."""
    host = cluster.hosts.get(store)
    if host is None or not cluster.machines[store].running or group not in host.groups():
        return False
    state = decode_state(group, host._store.log.state(group) or b"")
    return state.repair is RepairStage.NONE and store in host.status(group).voters


async def wait_repaired(cluster: Cluster, store: int, group: int = GROUP) -> None:
    """Wait until a replica is whole that had to be started anew."""

    def is_repaired() -> bool:
        if not is_whole(cluster, store, group):
            return False
        return cluster.hosts[store]._replicas[group].storage.state.votes_from > 0

    await cluster.until(is_repaired, timeout_s=200.0)
