"""How a command reaches logs of ledgers: a cluster's bookies, or Apache BookKeeper."""

from collections.abc import AsyncIterator, Callable, Coroutine
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Annotated, Any, Final

from cyclopts import Parameter
from msgspec.structs import replace

from raftwood.app.commands.metastore_choice import Where, opened
from raftwood.app.commands.source import DEFAULTS, Source
from raftwood.app.connecting import connected_metastore
from raftwood.app.dlog_opening import bookkeeper_ledgers, dlogs_of, opened_ledgers
from raftwood.app.event_loop import run
from raftwood.app.output import Format
from raftwood.app.settings import Settings
from raftwood.base.environment import Environment
from raftwood.base.errors import InvalidInput
from raftwood.base.position import (
    Position,
    entry_of_position,
    parse_position,
    position_of_entry,
)
from raftwood.base.seams import MetaStore
from raftwood.disk.real_environment import real_environment
from raftwood.dlog.ledgers.ledger_store import LedgerStore
from raftwood.dlog.log.dlogs import Dlogs

_USUAL_CHROOT: Final = "ledgers"


@Parameter(name="*")
@dataclass(frozen=True)
class DlogTarget:
    """Which ledgers, and how to print what came of it."""

    connect: Annotated[
        str | None,
        Parameter(help="Some stores, HOST:PORT[,HOST:PORT]; else cluster.members of the settings."),
    ] = None
    bookkeeper: Annotated[
        str | None,
        Parameter(
            help="Apache BookKeeper in place of a cluster, by its ZooKeeper: HOST:PORT[/chroot]; "
            "the logs' records are there too, for each chroot its own."
        ),
    ] = None
    records: Annotated[
        str | None,
        Parameter(
            help="With --bookkeeper: the ZooKeeper that has the logs' records in place of that, "
            "HOST:PORT[/chroot]. Release 0.1.0 kept those of all chroots at HOST:PORT."
        ),
    ] = None
    output: Annotated[Format, Parameter(name="--format", help="How to print it.")] = "text"
    source: Source = DEFAULTS

    def with_dlogs(self, work: Callable[[Dlogs, Settings], Coroutine[Any, Any, int]]) -> int:
        """Do something with logs; answers the exit status."""

        async def with_these(
            environment: Environment, store: MetaStore, ledgers: LedgerStore, settings: Settings
        ) -> int:
            return await work(dlogs_of(environment, settings, store, ledgers), settings)

        return self._run(with_these)

    def with_ledgers(self, work: Callable[[LedgerStore], Coroutine[Any, Any, int]]) -> int:
        """Do something with ledgers; answers the exit status."""

        async def with_these(
            _: Environment, __: MetaStore, ledgers: LedgerStore, ___: Settings
        ) -> int:
            return await work(ledgers)

        return self._run(with_these)

    def _run(
        self,
        work: Callable[[Environment, MetaStore, LedgerStore, Settings], Coroutine[Any, Any, int]],
    ) -> int:
        settings = self.source.load().settings
        if self.connect is not None and self.bookkeeper is not None:
            raise InvalidInput("give --connect or --bookkeeper, not both")
        if self.records is not None and self.bookkeeper is None:
            raise InvalidInput("--records goes with --bookkeeper: a cluster's metastore has them")

        async def main() -> int:
            async with self._opened(environment, settings) as (store, ledgers):
                return await work(environment, store, ledgers, settings)

        with real_environment() as environment:
            return run(main())

    @asynccontextmanager
    async def _opened(
        self, environment: Environment, settings: Settings
    ) -> AsyncIterator[tuple[MetaStore, LedgerStore]]:
        if self.bookkeeper is not None:
            given = replace(settings.dlog, bookkeeper=self.bookkeeper)
            ledgers = await bookkeeper_ledgers(environment, given)
            where = Where(zookeeper=self.records or _logs_at(self.bookkeeper))
            try:
                async with opened(environment, where) as store:
                    yield store, ledgers
            finally:
                await ledgers.close()
            return
        if not settings.dlog.store:
            # A cluster has bookies of its own, unless it is said otherwise.
            settings = replace(settings, dlog=replace(settings.dlog, store="bookies"))
        async with (
            connected_metastore(environment, settings, self.connect) as store,
            opened_ledgers(environment, settings, store) as found,
        ):
            yield store, found


def _logs_at(bookkeeper: str) -> str:
    """Where in ZooKeeper the records of the logs on these ledgers are: those of BookKeeper's own
    chroot where 0.1.0 has all of them, others beside their ledgers.
    """
    hosts, _, chroot = bookkeeper.partition("/")
    return hosts if chroot in ("", _USUAL_CHROOT) else f"{hosts}/{chroot}-logs"


DLOG_TARGET = DlogTarget()


def position_text(position: Position) -> str:
    """As LEDGER:ENTRY:BATCH."""
    return ":".join(str(each) for each in entry_of_position(position))


def position_of(text: str) -> Position:
    """LEDGER:ENTRY[:BATCH], or the same as one decimal number."""
    if ":" not in text:
        return parse_position(text)
    parts = text.split(":")
    if len(parts) > 3 or not all(each.isascii() and each.isdecimal() for each in parts):
        raise InvalidInput(f"position {text[:60]!r}: write LEDGER:ENTRY or LEDGER:ENTRY:BATCH")
    ledger, entry, *batch = map(int, parts)
    return position_of_entry(ledger=ledger, entry=entry, batch=batch[0] if batch else 0)
