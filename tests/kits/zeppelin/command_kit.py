"""A node in this process, without a network: sessions that execute commands."""

import asyncio
import random
from typing import Any

from raftwood.base.environment import Environment
from raftwood.disk.real_environment import end_process
from raftwood.zeppelin.commands.dispatch import execute
from raftwood.zeppelin.commands.session import KvSession, ParkedRequests, ScanCursors
from raftwood.zeppelin.model import User
from raftwood.zeppelin.node.checkpoints import PartitionCheckpoints
from tests.kits.zeppelin.decoding import decoded
from tests.kits.zeppelin.static_view import WRITER, StaticView, single_node

BEGIN_MS = 1_800_000_000_000


class ManualClock:
    """Stands still until the test moves it."""

    def __init__(self) -> None:
        self.now_ms = BEGIN_MS

    def wall_ns(self) -> int:
        return self.now_ms * 1_000_000

    def monotonic_ns(self) -> int:
        return self.wall_ns()


class CommandHost:
    """What sessions need of a node."""

    def __init__(self, view: StaticView | None = None) -> None:
        self.clock = ManualClock()
        self.view = view or single_node()
        self.environment = Environment(
            clock=self.clock,
            random=random.Random(0),
            files=None,  # type: ignore[arg-type]
            end_process=end_process,
        )
        self.cursors = ScanCursors(1000)
        self.checkpoints: PartitionCheckpoints | None = None
        self.parking = ParkedRequests()
        self.started_ms = BEGIN_MS
        self.command_count = self.connection_count = self.port = 0
        self.sessions: list[KvSession] = []

    async def verified(self, name: str, password: bytes) -> User | None:
        user = self.view.topology.users.get(name)
        return user if password == b"correct-horse" else None

    def client(self, user: str | None = WRITER) -> "CommandClient":
        session = KvSession(self, len(self.sessions) + 1)
        self.sessions.append(session)
        if user is not None:
            session.log_in(self.view.topology.users[user])
        return CommandClient(session)


class CommandClient:
    """`client("SET", "a", 1)` answers what the protocol's answer says."""

    def __init__(self, session: KvSession) -> None:
        self.session = session

    def encoded(self, *words: object) -> bytes:
        arguments = [word if isinstance(word, bytes) else str(word).encode() for word in words]
        self.session.begin_turn()
        answer = execute(self.session, arguments)
        if isinstance(answer, bytes):
            return answer

        async def wait() -> bytes:
            return await answer

        return asyncio.run(wait())

    def __call__(self, *words: object) -> Any:
        return decoded(self.encoded(*words))
