"""`BookieServer`: a bookie on the network, with its registration, garbage collection and metrics.

All dependencies are arguments, so that it runs in simulation as well.
"""

import asyncio
from collections.abc import Callable, Sequence
from contextlib import AsyncExitStack
from typing import Final

import msgspec

from raftwood.base.environment import Environment
from raftwood.base.errors import NotFound, RaftwoodError, Unavailable
from raftwood.base.files import Buffer
from raftwood.base.logs import get_logger
from raftwood.base.metrics import Metrics
from raftwood.base.seams import MetaStore, SetKey
from raftwood.base.settings import ConnectionSettings
from raftwood.disk.segment_log import LogSettings
from raftwood.dlog.bookie.bookie import Bookie
from raftwood.dlog.bookie.membership import (
    BOOKIES,
    RegisteredBookie,
    admit,
    limbo_version,
    note_limbo,
)
from raftwood.dlog.bookie.metadata_store import MetaLedgers, next_ledger
from raftwood.dlog.bookie.settings import BookieSettings
from raftwood.dlog.bookie.wire import (
    ADD,
    FENCE,
    LAST_CONFIRMED,
    PUBLISH,
    READ,
    WAIT,
    PublishRequest,
    WaitRequest,
    bookie_identity,
    decode_adds,
    decode_fence,
    decode_ledger,
    decode_read,
    encode_number,
    encode_refusals,
)
from raftwood.dlog.errors import NoSuchLedger
from raftwood.dlog.ledgers.metadata import BookieId
from raftwood.dlog.ledgers.seams import LedgerMetadataStore
from raftwood.net import (
    Call,
    Identity,
    Payload,
    Secret,
    Server,
    ServerCredentials,
    ServerLimits,
    ServerTls,
    Service,
)
from raftwood.net.identity import split_address


class BookieService:
    """Serves a bookie: registers methods with a `Service`; each names the roles that may call."""

    def __init__(self, bookie: Bookie) -> None:
        self._bookie = bookie

    def register(self, service: Service) -> None:
        service.fast(ADD, self._add)
        service.task(READ, self._read)
        service.task(FENCE, self._fence)
        service.task(LAST_CONFIRMED, self._last_confirmed)
        service.typed(WAIT, self._wait)
        service.typed(PUBLISH, self._publish)

    def _add(self, call: Call, payload: Payload) -> None:
        """Writes all entries of one request, then answers them together when durable."""
        bookie = self._bookie
        refusals: list[tuple[int, RaftwoodError]] = []
        for place, (packed, master_key, is_recovery) in enumerate(decode_adds(payload)):
            error = bookie.add(packed, master_key=master_key, is_recovery=is_recovery)
            if error is not None:
                refusals.append((place, error))
        bookie.when_durable(_answering(call, encode_refusals(refusals)))

    async def _read(self, _: Call, payload: Payload) -> Buffer:
        ledger, entry = decode_read(payload)
        cached = self._bookie.read_cached(ledger, entry)
        return await self._bookie.read(ledger, entry) if cached is None else cached

    async def _fence(self, _: Call, payload: Payload) -> Buffer:
        request = decode_fence(payload)
        await self._bookie.fence(request.ledger, request.master_key)
        return await self._bookie.read(request.ledger, request.entry)

    async def _last_confirmed(self, _: Call, payload: Payload) -> list[Buffer]:
        published, highest = await self._bookie.read_last_confirmed(decode_ledger(payload))
        return [encode_number(published), highest]

    async def _wait(self, _: Call, request: WaitRequest) -> int:
        return await self._bookie.wait_last_confirmed(
            request.ledger, after=request.after, timeout_ms=request.timeout_ms
        )

    async def _publish(self, _: Call, request: PublishRequest) -> None:
        await self._bookie.write_last_confirmed(
            request.ledger, request.last_confirmed, request.master_key
        )


def _answering(call: Call, answer: bytes) -> Callable[[], None]:
    return lambda: call.reply(answer)


# `BookieRegistration`: keeps a bookie on the list of those that run, with its rack and state.

_LOOKS_PER_LEASE: Final = 4
_LOOK_S_MAX: Final = 1.0
_log = get_logger("bookie")


class BookieRegistration:
    """Keeps a bookie registered: renews its lease, takes a new one if it was lost, and reports when
    the bookie turns read-only and back. Use `start`, and `close` when done.

    The registration only decides who may be chosen for new ledgers: readers and recoveries ask the
    bookies that the ledgers' metadata name, registered or not.
    """

    def __init__(
        self, store: MetaStore, bookie: Bookie, *, rack: str, lease_ms: int, address: str = ""
    ) -> None:
        self._store = store
        self._bookie = bookie
        self._rack = rack
        self._address = address
        self._lease_ms = lease_ms
        self._lease = 0
        self._told: RegisteredBookie | None = None
        self._renewed_at = 0.0
        self._task: asyncio.Task[None] | None = None
        self._has_told_of_doubts = False
        self.problem = ""
        """Why the bookie is not registered at the moment; empty if it is."""

    async def start(self) -> None:
        """Returns once the bookie is on the list."""
        await self._tell()
        loop = asyncio.get_running_loop()
        self._task = loop.create_task(self._run(), name=f"registration of {self._bookie.id}")

    async def _run(self) -> None:
        look_s = min(_LOOK_S_MAX, self._lease_ms / 1000 / _LOOKS_PER_LEASE)
        while True:
            await asyncio.sleep(look_s)
            try:
                await self._tell()
            except RaftwoodError as error:
                if not self.problem:
                    _log.warning(
                        "the bookie is not registered now",
                        bookie=self._bookie.id,
                        reason=error.message,
                    )
                self.problem = error.message
                continue
            self.problem = ""
            try:
                await self._end_doubts()
            except RaftwoodError as error:
                if not self._has_told_of_doubts:
                    _log.warning(
                        "the bookie does not know yet whether its ledgers were repaired",
                        bookie=self._bookie.id,
                        reason=error.message,
                    )
                self._has_told_of_doubts = True
            else:
                self._has_told_of_doubts = False

    async def _tell(self) -> None:
        now = asyncio.get_running_loop().time()
        bookie = self._bookie
        current = RegisteredBookie(bookie.instance, self._rack, bookie.is_read_only, self._address)
        if not self._lease:
            self._lease = await self._store.grant_lease(ttl_ms=self._lease_ms)
            self._told = None
        try:
            if current != self._told:
                key = f"{BOOKIES}{self._bookie.id}"
                value = msgspec.json.encode(current)
                await self._store.transact((), (SetKey(key, value, self._lease),))
                self._told = current
            elif now - self._renewed_at >= self._lease_ms / 1000 / _LOOKS_PER_LEASE:
                await self._store.keep_alive(self._lease)
            else:
                return
        except NotFound:
            self._lease = 0  # The next look begins with a new lease.
            raise
        self._renewed_at = now

    async def _end_doubts(self) -> None:
        """Ends the doubts once a repair has removed the note that the bookie began anew.

        Not at the bookie's own word: only a repair that went through all ledgers knows that nothing
        is missing (docs/decisions/0032).
        """
        bookie = self._bookie
        if bookie.has_doubts and not await limbo_version(self._store, bookie.id):
            await bookie.end_doubts()
            _log.info("all ledgers of the bookie were repaired", bookie=bookie.id)

    async def close(self) -> None:
        """Takes the bookie off the list."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])
        if self._lease:
            try:
                await self._store.revoke_lease(self._lease)
            except RaftwoodError as error:
                _log.warning("the bookie stays registered for a while", reason=error.message)


# Garbage collection: drops a bookie's entries of deleted ledgers.
#
# A ledger's metadata are there before its first entry, so what the bookie had before a look began,
# and the look did not find, was deleted. The other order would take a ledger that is made during
# the look for a deleted one, and drop entries that were just acked. A ledger goes when two looks in
# a row say so, and a question about it alone: entries that are dropped do not come back
# (`test_a_ledger_goes_after_two_looks_and_never_one_that_is_newer_than_the_look`).


class GarbageRules:
    """Decides which ledgers to drop, from a series of looks; no I/O."""

    def __init__(self) -> None:
        self._missing: dict[int, None] = {}

    def looked(self, *, held: Sequence[int], existing: Sequence[int]) -> list[int]:
        """`held` is from before the look began; returns the ledgers to drop, in order."""
        known = set(existing)
        missing = [ledger for ledger in held if ledger not in known]
        gone = [ledger for ledger in missing if ledger in self._missing]
        self._missing = dict.fromkeys(each for each in missing if each not in self._missing)
        return gone


class GarbageCollector:
    """Looks at regular times; use `start`, and `close` when done."""

    def __init__(self, bookie: Bookie, ledgers: LedgerMetadataStore, *, interval_ms: int) -> None:
        self._bookie = bookie
        self._ledgers = ledgers
        self._interval_s = interval_ms / 1000
        self._rules = GarbageRules()
        self._task: asyncio.Task[None] | None = None

    def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._task = loop.create_task(self._run(), name=f"garbage of {self._bookie.id}")

    async def _run(self) -> None:
        while True:
            await asyncio.sleep(self._interval_s)
            try:
                await self.look()
            except RaftwoodError as error:
                _log.warning("no look for deleted ledgers", reason=error.message)

    async def look(self) -> list[int]:
        """Looks once; returns the dropped ledgers."""
        held = self._bookie.ledgers()
        existing = [ledger async for ledger in self._ledgers.ledgers()] if held else []
        gone = [
            each
            for each in self._rules.looked(held=held, existing=existing)
            if await self._is_gone(each)
        ]
        self._bookie.drop(gone)
        if gone:
            _log.info("deleted ledgers dropped", bookie=self._bookie.id, count=len(gone))
        return gone

    async def _is_gone(self, ledger: int) -> bool:
        """Asks the store about one ledger alone; returns whether it is gone."""
        try:
            await self._ledgers.get(ledger)
        except NoSuchLedger:
            return True
        return False

    async def close(self) -> None:
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait([self._task])


# A bookie's metrics, read at each scrape.


def show_bookie(metrics: Metrics, bookie: Bookie) -> None:
    """Registers a bookie's metrics; several bookies in one process differ by their label."""
    labels = {"bookie": bookie.id}
    counts = bookie.counts
    for name, text, field in (
        ("bookie_adds_total", "Entries added.", "adds"),
        ("bookie_added_bytes_total", "Bytes of the entries added.", "added_bytes"),
        ("bookie_repeated_adds_total", "Adds of entries that were there already.", "repeated"),
        ("bookie_reads_total", "Entries read.", "reads"),
        ("bookie_read_bytes_total", "Bytes of the entries read.", "read_bytes"),
        ("bookie_damaged_reads_total", "Reads that found an entry damaged.", "damaged"),
        ("bookie_fences_total", "Ledgers fenced.", "fences"),
    ):
        metrics.pull_counter(name, text, _Field(counts, field).read, labels)
    for name, text, read in (
        ("bookie_ledgers", "Ledgers of which there is anything.", bookie.ledger_count),
        ("bookie_read_only", "1 while no entries are taken.", lambda: bookie.is_read_only),
        ("bookie_waits", "Readers that wait for more.", lambda: bookie.wait_count),
        (
            "bookie_journal_queue_bytes",
            "Bytes written and not synced yet.",
            lambda: bookie.statistics().pending_bytes,
        ),
        ("bookie_disk_bytes", "Bytes of the log.", lambda: bookie.statistics().disk_bytes),
        ("bookie_live_bytes", "Bytes of it in use.", lambda: bookie.statistics().live_bytes),
    ):
        metrics.pull_gauge(name, text, read, labels)


class _Field:
    def __init__(self, counts: object, name: str) -> None:
        self._counts = counts
        self._name = name

    def read(self) -> float:
        return float(getattr(self._counts, self._name))


# `BookieServer`: a bookie on the network and in the registry; all dependencies are arguments, so
# that it runs in simulation as well.

DRAIN_MS: Final = 2_000


class BookieNetwork(msgspec.Struct, frozen=True, kw_only=True):
    """Where a bookie listens, and how it authenticates its clients."""

    listen: str
    """HOST:PORT"""
    secrets: dict[str, Secret]
    """Secrets by role."""
    tls: ServerTls | None = None
    connections: ConnectionSettings = ConnectionSettings()

    def secret_of(self, peer: Identity) -> Secret | None:
        return self.secrets.get(peer.role)


class BookieServer:
    """A served bookie. Use `start`, and `close` when done; does not close the metastore."""

    def __init__(
        self, bookie: Bookie, registration: BookieRegistration, stack: AsyncExitStack
    ) -> None:
        self.bookie = bookie
        self._registration = registration
        self._stack = stack

    @classmethod
    async def start(
        cls,
        environment: Environment,
        settings: BookieSettings,
        store: MetaStore,
        *,
        cluster: str,
        network: BookieNetwork | None,
        metrics: Metrics | None = None,
        log_settings: LogSettings | None = None,
        id_: str | None = None,
        begins_anew: bool = False,
    ) -> "BookieServer":
        """Opens the folder, checks that it belongs to this id, listens, and registers.

        With an `id_` of its own, the bookie may have another address at each start; without a
        network, it serves this process alone.
        """
        bookie_id = BookieId(id_ or settings.id)
        stack = AsyncExitStack()
        try:
            bookie = await Bookie.open(
                environment,
                settings.data_folder,
                cluster=cluster,
                id_=bookie_id,
                settings=log_settings,
                waits_max=settings.waits_max,
            )
            stack.push_async_callback(bookie.close)

            async def begin_anew() -> None:
                end = await next_ledger(store)
                # The note exists before the bookie has doubts, since its absence ends them. If the
                # bookie dies in between, it begins anew once more, and writes another note.
                await note_limbo(store, bookie_id, end)
                await bookie.enter_limbo(end)

            await admit(
                store,
                bookie_id,
                instance=bookie.instance,
                holds_ledgers=bool(bookie.ledgers()),
                begin_anew=begin_anew if begins_anew else None,
            )
            if metrics is not None:
                show_bookie(metrics, bookie)
            if network is not None:
                server = await _listening(environment, cluster, bookie, network)
                stack.push_async_callback(server.close, DRAIN_MS)
                if metrics is not None:
                    server.admission.count_in(metrics, "bookie")
            ledgers = MetaLedgers(store, environment.random)
            stack.push_async_callback(ledgers.close)
            collector = GarbageCollector(bookie, ledgers, interval_ms=settings.garbage_interval_ms)
            collector.start()
            stack.push_async_callback(collector.close)
            registration = BookieRegistration(
                store,
                bookie,
                rack=settings.rack,
                lease_ms=settings.lease_ms,
                address=network.listen if id_ and network else "",
            )
            # Closed before all else: a bookie that is about to stop must not be chosen any more.
            stack.push_async_callback(registration.close)
            await registration.start()
        except BaseException:
            await stack.aclose()
            raise
        return cls(bookie, registration, stack)

    def problem(self) -> str:
        """Why the bookie is not ready at the moment; empty if it is."""
        if self._registration.problem:
            return f"it is not registered: {self._registration.problem}"
        return (
            "it takes no entries: its disk is full or failing" if self.bookie.is_read_only else ""
        )

    async def close(self) -> None:
        """Unregisters, answers what is under way, then stops."""
        await self._stack.aclose()


async def _listening(
    environment: Environment, cluster: str, bookie: Bookie, network: BookieNetwork
) -> Server:
    service = Service()
    BookieService(bookie).register(service)
    credentials = ServerCredentials(
        cluster_id=cluster, identity=bookie_identity(bookie.id), secret_of=network.secret_of
    )
    limits = ServerLimits(connections=network.connections)
    server = Server(service, credentials, environment.random, limits)
    host, port = split_address(network.listen)
    try:
        await server.listen(host, port, tls=network.tls)
    except OSError as error:
        raise Unavailable(
            f"cannot listen on {network.listen}: {error.strerror or error}; set bookie.listen to "
            "an address of this machine that is free"
        ) from error
    return server
