"""`ConsumerGroups`: who reads which shard of a logstore, and how far."""

# ruff: noqa: ARG002

from collections.abc import Sequence

from raftwood.base.environment import Environment
from raftwood.base.errors import Unavailable
from raftwood.loghub.controls import Checkpoint, ConsumerGroupView
from raftwood.loghub.server.metadata import Metadata
from raftwood.loghub.server.retention import Required
from raftwood.loghub.server.streams import Streams


class ConsumerGroups:
    """One for a gateway."""

    def __init__(self, environment: Environment, metadata: Metadata, streams: Streams) -> None:
        self._environment = environment
        self._metadata = metadata
        self._streams = streams

    async def create(
        self, project: str, logstore: str, group: str, *, timeout_s: int, is_ordered: bool
    ) -> None:
        raise Unavailable("not yet")

    async def update(
        self,
        project: str,
        logstore: str,
        group: str,
        *,
        timeout_s: int | None,
        is_ordered: bool | None,
    ) -> None:
        raise Unavailable("not yet")

    async def delete(self, project: str, logstore: str, group: str) -> None:
        raise Unavailable("not yet")

    async def groups(self, project: str, logstore: str) -> list[ConsumerGroupView]:
        raise Unavailable("not yet")

    async def heartbeat(
        self, project: str, logstore: str, group: str, *, consumer: str, held: Sequence[int]
    ) -> list[int]:
        raise Unavailable("not yet")

    async def set_checkpoint(
        self,
        project: str,
        logstore: str,
        group: str,
        *,
        shard: int,
        checkpoint: str,
        consumer: str,
        is_forced: bool,
    ) -> None:
        raise Unavailable("not yet")

    async def checkpoints(
        self, project: str, logstore: str, group: str, *, shard: int | None
    ) -> list[Checkpoint]:
        raise Unavailable("not yet")

    async def delete_all(self, project: str, logstore: str) -> None:
        """All that is kept of a logstore's groups."""

    async def required_positions(self, project: str, logstore: str) -> dict[int, Required]:
        """By shard; none where nobody is registered."""
        return {}
