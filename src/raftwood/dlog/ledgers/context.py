"""State that all writers, readers and recoveries of one ledger client share, and its settings."""

import asyncio
from collections.abc import Awaitable, Callable, Coroutine, Mapping
from typing import Any, TypeVar

import msgspec

from raftwood.base.backoff import Backoff
from raftwood.base.environment import Environment
from raftwood.base.errors import DeadlineExceeded, InvalidConfiguration, RaftwoodError, Unavailable
from raftwood.dlog.errors import BookieUnavailable
from raftwood.dlog.ledgers.metadata import LedgerMetadata
from raftwood.dlog.ledgers.placement import Quarantine
from raftwood.dlog.ledgers.seams import Bookies, LedgerMetadataStore, VersionedMetadata


class LedgerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a ledger client; the defaults suit bookies in one data centre."""

    add_timeout_ms: int = 2_000
    """A bookie that has answered no add for this long is replaced like a dead one."""
    read_timeout_ms: int = 3_000
    """One bookie's time for one answer."""
    speculative_read_ms: int = 20
    """After this time the next replica is asked too."""
    overload_pause_ms: int = 20
    """The pause before an add is sent again to an overloaded bookie."""
    change_timeout_ms: int = 10_000
    """Appends that could not go on for this long fail with `NotEnoughBookies`."""
    change_retry_ms: int = 500
    """How often bookies are looked for while there are too few."""
    quarantine_ms: int = 30_000
    """A bookie that failed is avoided for this long, if there are others."""
    entries_under_way_max: int = 10_000
    """The limit of one writer; above it, `Overloaded`."""
    bytes_under_way_max: int = 128 << 20
    """Likewise; an entry alone may be larger. Well above what a log has under way, whose entries
    have heads and snapshots beside the messages that it counts."""
    lag_bytes_max: int = 64 << 20
    """A bookie this far behind the others is replaced: memory holds the entries that it lacks."""
    read_window: int = 64
    """Entries that a read or a recovery requests at once."""
    metadata_tries: int = 5

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            if getattr(self, name) <= 0:
                raise InvalidConfiguration(f"{name} = {getattr(self, name)}: give a number above 0")


Key = TypeVar("Key")
Answer = TypeVar("Answer")
_PAUSE = Backoff(first_ms=65, longest_ms=65)


class ClientContext(msgspec.Struct, frozen=True, kw_only=True):
    """The seams of a client, its settings, and its list of bad bookies."""

    bookies: Bookies
    metadata: LedgerMetadataStore
    environment: Environment
    settings: LedgerSettings
    quarantine: Quarantine

    async def patiently(self, call: Callable[[], Awaitable[Answer]]) -> Answer:
        """Repeats a call of the metadata store, which may be made twice, until it is answered."""
        for tries_left in reversed(range(self.settings.metadata_tries)):
            try:
                return await call()
            except (Unavailable, DeadlineExceeded):
                if not tries_left:
                    raise
                await asyncio.sleep(_PAUSE.delay_s(0, self.environment.random))
        raise AssertionError("at least one try was made")

    async def get(self, ledger: int) -> VersionedMetadata:
        return await self.patiently(lambda: self.metadata.get(ledger))

    async def update(
        self,
        ledger: int,
        known: VersionedMetadata,
        change: Callable[[LedgerMetadata], LedgerMetadata | None],
    ) -> VersionedMetadata:
        """Changes metadata by compare-and-set until the change is stored, or none is needed.

        `change` gets the current metadata each time, and raises if it is too late.
        """
        for _ in range(self.settings.metadata_tries):
            wanted = change(known.metadata)
            if wanted is None:
                return known
            try:
                version = await self.metadata.compare_and_set(ledger, wanted, version=known.version)
            except (Unavailable, DeadlineExceeded):
                # The change may have been stored: the next read tells.
                await asyncio.sleep(_PAUSE.delay_s(0, self.environment.random))
            else:
                if version is not None:
                    return VersionedMetadata(wanted, version)
            known = await self.get(ledger)
        if change(known.metadata) is None:
            return known
        raise Unavailable(f"ledger {ledger}: its metadata could not be written: try again")


async def ask_all(
    questions: Mapping[Key, Coroutine[Any, Any, Answer]],
    *,
    answered: Callable[[Key, Answer], bool],
    failed: Callable[[Key, RaftwoodError], bool],
    timeout_ms: float,
) -> None:
    """Asks several bookies at once, and handles answers as they come until a callback says enough.

    A bookie that does not answer in time has failed; unneeded answers are not awaited.
    """
    enough: asyncio.Future[None] = asyncio.get_running_loop().create_future()
    left = len(questions)

    def finish(is_enough: bool) -> None:
        nonlocal left
        left -= 1
        if (is_enough or left == 0) and not enough.done():
            enough.set_result(None)

    async def ask(key: Key, question: Coroutine[Any, Any, Answer]) -> None:
        try:
            async with asyncio.timeout(timeout_ms / 1000):
                answer = await question
        except TimeoutError:
            finish(failed(key, BookieUnavailable(f"{key}: no answer in {timeout_ms} ms")))
        except RaftwoodError as error:
            finish(failed(key, error))
        else:
            finish(answered(key, answer))

    tasks = [asyncio.create_task(ask(key, question)) for key, question in questions.items()]
    try:
        await enough
    finally:
        for task in tasks:
            task.cancel()
        for outcome in await asyncio.gather(*tasks, return_exceptions=True):
            if isinstance(outcome, Exception):
                raise outcome
        for question in questions.values():
            question.close()  # A coroutine that never began complains otherwise.
