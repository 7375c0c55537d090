"""Clients that read and write registers at random and write down what they saw."""

import asyncio
import random
from collections.abc import Mapping

import msgspec

from raftwood.base.environment import Environment
from raftwood.base.errors import RaftwoodError
from raftwood.raft.client import AsyncRaftClient
from raftwood.testing import History
from tests.kits.raft.hosts.store import CLIENT_NETWORK, GROUPS
from tests.kits.raft.hosts.witness import Witness

KEYS = 6
"""Keys of a group in use at a time: few, so that clients meet."""
GENERATION_S = 10.0
"""After so long, other keys: the checker's work grows faster than a key's history."""
_PREVIOUS_SHARE = 0.1
_NEAR_SHARE = 0.3
_PADDING = (0, 0, 0, 150, 400)
"""Commands differ in size, so that messages end within what was proposed together."""
_TIMEOUT_MS = 4_000


class Load(msgspec.Struct, frozen=True, kw_only=True):
    """How long to go on, by the loop's clock, and how fast each client asks for what."""

    until: float
    pause_s: float
    """Between two bursts of a client, on average."""
    read_share: float = 0.5


class Recorder:
    """One client's operations, written down."""

    def __init__(
        self,
        client: AsyncRaftClient,
        name: str,
        history: History,
        witness: Witness,
        *,
        near: AsyncRaftClient | None = None,
    ) -> None:
        self._client = client
        self._near = near or client
        self._name = name
        self._history = history
        self._witness = witness
        self._sequence = 0

    async def write(
        self, group: int, key: str, *, padding: int = 0, timeout_ms: int = _TIMEOUT_MS
    ) -> bool:
        self._sequence += 1
        value = f"{self._name}-{self._sequence}".ljust(padding, "~")
        payload = f"{key}={value}".encode()
        event = self._history.call(self._name, "write", value, key=f"{group}/{key}")
        floor = self._witness.floor(group)
        try:
            answer = await self._client.propose(group, payload, timeout_ms=timeout_ms)
        except RaftwoodError:
            # Whatever the last attempt came to, an earlier one may have been carried out.
            self._history.finish(event, "unknown")
            return False
        self._history.finish(event, "ok")
        self._witness.wrote(group, payload, position=int(answer), floor=floor)
        return True

    async def read(
        self, group: int, key: str, *, is_near: bool = False, timeout_ms: int = _TIMEOUT_MS
    ) -> bool:
        """Asks whoever leads, or the one store that is near, which may be a follower."""
        client = self._near if is_near else self._client
        event = self._history.call(self._name, "read", key=f"{group}/{key}")
        floor = self._witness.floor(group)
        try:
            answer = await client.read(group, key.encode(), timeout_ms=timeout_ms)
        except RaftwoodError:
            self._history.finish(event, "failed")
            return False
        position, _, value = answer.decode().partition(" ")
        self._history.finish(event, "ok", value)
        self._witness.read(group, key, value, position=int(position), floor=floor)
        return True


async def run_client(
    environment: Environment,
    name: str,
    stores: Mapping[int, str],
    history: History,
    witness: Witness,
    load: Load,
) -> None:
    """Bursts of operations that travel together, many bursts under way at a time."""
    loop = asyncio.get_running_loop()
    source = random.Random(environment.random.getrandbits(64))
    near = source.choice(sorted(stores)[:3])
    async with (
        AsyncRaftClient(environment, CLIENT_NETWORK, stores) as client,
        AsyncRaftClient(environment, CLIENT_NETWORK, {near: stores[near]}) as near_client,
        asyncio.TaskGroup() as tasks,
    ):
        recorder = Recorder(client, name, history, witness, near=near_client)
        while loop.time() < load.until:
            await asyncio.sleep(source.uniform(0, 2 * load.pause_s))
            group = source.choice(GROUPS)
            is_near = source.random() < _NEAR_SHARE
            for key in _choose_keys(source, loop.time()):
                if source.random() < load.read_share:
                    work = recorder.read(group, key, is_near=is_near)
                else:
                    work = recorder.write(group, key, padding=source.choice(_PADDING))
                tasks.create_task(work)


def _choose_keys(source: random.Random, now: float) -> list[str]:
    generation = int(now / GENERATION_S)
    if source.random() < _PREVIOUS_SHARE:
        generation = max(0, generation - 1)
    numbers = source.sample(range(KEYS), source.randint(1, KEYS))
    return [f"k{generation * KEYS + number}" for number in numbers]
