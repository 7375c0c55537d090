"""`LedgerClient`: the quorum client, a `LedgerStore` over any kind of bookie.

Start reading here; `writer`, `reader`, `recovery` and `repair` do the work, `rules` decides.
"""

import hmac
from collections.abc import AsyncIterator, Callable, Mapping

from raftwood.base.environment import Environment
from raftwood.base.errors import AlreadyExists, DeadlineExceeded, PermissionDenied, Unavailable
from raftwood.dlog.errors import NoSuchLedger
from raftwood.dlog.ledgers.context import ClientContext, LedgerSettings
from raftwood.dlog.ledgers.metadata import (
    BookieId,
    BookieInfo,
    EntryId,
    LedgerConfig,
    LedgerMetadata,
    Segment,
)
from raftwood.dlog.ledgers.placement import Quarantine, choose_ensemble
from raftwood.dlog.ledgers.reader import QuorumReader
from raftwood.dlog.ledgers.recovery import recover as recover_ledger
from raftwood.dlog.ledgers.repair import RepairedLedger, repair_bookie
from raftwood.dlog.ledgers.seams import Bookies, LedgerMetadataStore, VersionedMetadata
from raftwood.dlog.ledgers.writer import QuorumWriter

_TOKEN_BITS = 63


class LedgerClient:
    """Creates, opens and deletes ledgers; closes the seams given to it."""

    def __init__(
        self,
        bookies: Bookies,
        metadata: LedgerMetadataStore,
        environment: Environment,
        settings: LedgerSettings | None = None,
    ) -> None:
        settings = settings or LedgerSettings()
        self._context = ClientContext(
            bookies=bookies,
            metadata=metadata,
            environment=environment,
            settings=settings,
            quarantine=Quarantine(environment.clock, quarantine_ms=settings.quarantine_ms),
        )
        self._writers: dict[int, QuorumWriter] = {}

    async def create(
        self, config: LedgerConfig, *, properties: Mapping[str, bytes] | None = None
    ) -> QuorumWriter:
        context = self._context
        environment = context.environment
        bookies = choose_ensemble(
            await context.patiently(context.metadata.bookies),
            count=config.ensemble,
            chance=environment.random,
            is_avoided=context.quarantine.holds,
        )
        metadata = LedgerMetadata(
            config=config,
            segments=(Segment(EntryId(0), bookies),),
            created_ms=environment.clock.wall_ns() // 1_000_000,
            properties=dict(properties or {}),
            creation_token=environment.random.getrandbits(_TOKEN_BITS),
        )
        ledger, created = await self._create(metadata)
        writer = QuorumWriter(context, ledger, created)
        self._forget_ended()
        self._writers[ledger] = writer
        return writer

    async def _create(self, metadata: LedgerMetadata) -> tuple[int, VersionedMetadata]:
        """Creates a ledger under an unused number, even if answers are lost."""
        context = self._context
        for _ in range(context.settings.metadata_tries):
            ledger = await context.patiently(context.metadata.new_ledger_id)
            try:
                version = await context.metadata.create(ledger, metadata)
                return ledger, VersionedMetadata(metadata, version)
            except (AlreadyExists, Unavailable, DeadlineExceeded):
                # Perhaps it was created and the answer lost: the token tells.
                try:
                    found = await context.get(ledger)
                except NoSuchLedger:
                    continue
                if found.metadata.creation_token == metadata.creation_token:
                    return ledger, found
        raise Unavailable("no ledger could be made: the store of metadata does not answer")

    def _forget_ended(self) -> None:
        self._writers = {
            ledger: writer for ledger, writer in self._writers.items() if not writer.has_ended()
        }

    async def open(self, ledger: int, *, recover: bool, password: bytes = b"") -> QuorumReader:
        known = await self._context.get(ledger)
        if not hmac.compare_digest(known.metadata.config.password, password):
            raise PermissionDenied(f"ledger {ledger} has another password: give its password")
        if recover and not known.metadata.is_closed:
            known = await recover_ledger(self._context, ledger, known)
        reader = QuorumReader(self._context, ledger, known)
        await reader.look()
        return reader

    async def info(self, ledger: int) -> LedgerMetadata:
        return (await self._context.get(ledger)).metadata

    async def delete(self, ledger: int) -> None:
        await self._context.patiently(lambda: self._context.metadata.delete(ledger))

    def ledgers(self, *, first: int = 0) -> AsyncIterator[int]:
        return self._context.metadata.ledgers(first=first)

    async def bookies(self) -> list[BookieInfo]:
        return await self._context.patiently(self._context.metadata.bookies)

    async def repair(
        self,
        bookie: BookieId,
        *,
        to: BookieId | None = None,
        grace_ms: int = 0,
        told: Callable[[RepairedLedger], None] = lambda _: None,
    ) -> list[RepairedLedger]:
        """Copies what a bookie should hold from others, as `repair_bookie` says."""
        return await repair_bookie(self._context, bookie, to=to, grace_ms=grace_ms, told=told)

    async def close(self) -> None:
        for writer in self._writers.values():
            await writer.abandon()
        await self._context.bookies.close()
        await self._context.metadata.close()
