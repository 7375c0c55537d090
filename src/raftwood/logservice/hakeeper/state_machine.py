"""`HaKeeperStateMachine`: HAKeeper as a raft group replicates it, over `rules`.

The group's leader proposes a `KeeperTick` each tick, followed by the orders of `plan` as a
`Schedule` of its term.
"""

from collections.abc import AsyncIterator, Iterator, Mapping, Sequence

from raftwood.logservice.hakeeper import checkers, queries, rules
from raftwood.logservice.hakeeper.commands import KeeperTick, Schedule, encode_command
from raftwood.logservice.hakeeper.messages import Order
from raftwood.logservice.hakeeper.state import KeeperState, decode_state, encode_state
from raftwood.logservice.settings import HaKeeperSettings
from raftwood.raft.state_machine import CommittedCommand, ExtraFiles, Stopped, gathered, in_chunks


class HaKeeperStateMachine:
    """Takes commands and queries as bytes, and returns results and answers as bytes."""

    def __init__(self, settings: HaKeeperSettings | None = None) -> None:
        self.settings = settings or HaKeeperSettings()
        self.state = KeeperState()

    def update(self, commands: Sequence[CommittedCommand]) -> list[bytes]:
        return [rules.apply(self.state, command.payload) for command in commands]

    def lookup(self, query: bytes) -> bytes:
        return queries.answer(self.state, self.settings, query)

    def tick_command(self) -> bytes:
        """The command that the leader proposes each tick."""
        return encode_command(
            KeeperTick(self.settings.bootstrap_ticks, self.settings.service_removed_ticks)
        )

    def plan(self) -> list[Order]:
        """The orders of the leader after a tick, from this replica's state."""
        return checkers.plan(self.state, self.settings)

    def schedule_command(self, term: int) -> bytes | None:
        """The plan as a command of the leader's term; None if there is nothing to order."""
        orders = self.plan()
        return encode_command(Schedule(term, self.state.tick, tuple(orders))) if orders else None

    def save_snapshot(self, files: ExtraFiles, stopped: Stopped) -> Iterator[bytes]:  # noqa: ARG002
        return in_chunks(encode_state(self.state), stopped)

    async def recover_from_snapshot(
        self,
        chunks: AsyncIterator[bytes],
        files: Mapping[str, str],  # noqa: ARG002
        stopped: Stopped,
    ) -> None:
        data = await gathered(chunks, stopped)
        if data is None:
            return
        self.state = decode_state(data)

    def close(self) -> None:
        """Does nothing: the machine holds no resources."""
