"""Another writer takes the logs of a stream from the gateway, which takes them back when it has
something to append.
"""

from collections.abc import Sequence

import msgspec

from raftwood.app.connecting import connected_metastore
from raftwood.app.dlog_opening import opened_ledgers
from raftwood.app.event_loop import run
from raftwood.app.parts import LogServicePart
from raftwood.app.settings import Settings
from raftwood.base.configuration import load_configuration
from raftwood.disk.real_environment import real_environment
from raftwood.dlog.log.dlogs import Dlogs
from raftwood.dlog.shared.taken_over import taken_over


class TakenOver(msgspec.Struct, frozen=True):
    """What came of it."""

    ledgers: int
    """Of all the logs, before."""
    interruption_ms: float
    """The longest time that nobody could write one of them."""


def take_over(part: LogServicePart, logs: Sequence[str]) -> TakenOver:
    """One log after the other; their writers ack nothing from here on."""
    settings = load_configuration(
        Settings, file=part.config, assignments=("dlog.store=bookies",)
    ).settings
    ledgers = 0
    interruption_ms = 0.0

    async def main() -> None:
        nonlocal ledgers, interruption_ms
        async with (
            connected_metastore(environment, settings, part.address) as store,
            opened_ledgers(environment, settings, store) as found,
        ):
            dlogs = Dlogs(environment, store, found, settings.dlog_client)
            for log in logs:
                ledgers += len((await dlogs.info(log)).meta.ledgers)
                async with taken_over(dlogs, log) as writer:
                    interruption_ms = max(interruption_ms, writer.take_over.interruption_ms)

    with real_environment() as environment:
        run(main())
    return TakenOver(ledgers, interruption_ms)
