"""`LogsByKind`: the logs of all kinds under one roof; a log's name says where it is kept."""

from collections.abc import Mapping

from raftwood.base.errors import InvalidConfiguration
from raftwood.base.seams import Log, Logs
from raftwood.loghub.log_names import kind_of_log
from raftwood.loghub.model import LogKind


class LogsByKind:
    """The `Logs` behind it stay their owner's."""

    def __init__(self, kinds: Mapping[LogKind, Logs]) -> None:
        self.kinds = kinds

    def _of(self, name: str) -> Logs:
        kind = kind_of_log(name)
        logs = self.kinds.get(kind)
        if logs is None:
            raise InvalidConfiguration(
                f"log {name} is kept in {kind.value}, and this process has none: set dlog.store "
                "in its configuration, as the other gateways have it"
            )
        return logs

    async def create(self, name: str) -> None:
        """A log without batches; nothing where it is there already."""
        await self._of(name).create(name)

    async def open(self, name: str) -> Log:
        """`NotFound` where there is none."""
        return await self._of(name).open(name)

    async def remove(self, name: str) -> None:
        """The log and all its batches; nothing where it is gone already."""
        await self._of(name).remove(name)

    async def names(self, prefix: str) -> list[str]:
        """Of all logs whose name begins so, in order."""
        found: list[str] = []
        for kind, logs in self.kinds.items():
            # A log of another kind's name was not made by LogHub.
            found += [each for each in await logs.names(prefix) if kind_of_log(each) is kind]
        return sorted(found)
