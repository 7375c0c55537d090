"""What still works with one of four bookies away, the client dead, or both: the same on bookies in
this process, as processes and on Apache BookKeeper's.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Literal

import pytest

from raftwood.base.errors import RaftwoodError
from raftwood.base.position import Position
from raftwood.dlog.errors import CannotRecover, NoSuchLedger
from raftwood.dlog.ledgers.digests import EntryDigest, master_key
from raftwood.dlog.ledgers.metadata import BookieId, LedgerConfig
from raftwood.dlog.log.log_reader import StoredMessage
from raftwood.dlog.log.log_writer import LogWriter
from raftwood.dlog.log.meta import LogConfig
from tests.kits.dlog.bookie_calls import Sink
from tests.kits.dlog.sites import DoomedProcess, Seat, Site
from tests.kits.running import run

QUORUMS = LedgerConfig(ensemble=3, write_quorum=3, ack_quorum=2)
BEFORE = [b"before %d" % number for number in range(10)]
OPERATION_S_MAX = 60
Fault = Literal["nothing", "killed", "stopped"]
OPERATIONS = ("open", "append", "rotate", "read", "shrink", "create")


@pytest.mark.parametrize("client", ["lives", "dies"])
@pytest.mark.parametrize("bookie", ["nothing", "killed", "stopped"])
def test_one_bookie_and_the_client_may_be_away(site: Site, bookie: Fault, client: str) -> None:
    # Where one bookie is away, the other two can always tell what a ledger holds.
    found = run(_table(site, bookie, client_dies=client == "dies"))
    assert found == dict.fromkeys(OPERATIONS, "yes")


async def _table(site: Site, fault: Fault, *, client_dies: bool) -> dict[str, str]:
    async with site.running(), site.seat() as seat:
        name = f"table-{fault}-{client_dies}"
        await seat.dlogs.create(name, LogConfig(ledger=QUORUMS, entries_max=3))
        if not client_dies:
            writer = await seat.dlogs.open_writer(name)
            positions = [await writer.append(each) for each in BEFORE[:-1]]
            await writer.rotate()
            positions.append(await writer.append(BEFORE[-1]))
            async with _broken(site, await _victim(seat, name), fault) as victim:
                row = _Row(site, seat, name, positions, victim)
                return await row.with_a_living(writer)
        positions = await _write_and_die(site, seat, name)
        async with _broken(site, await _victim(seat, name), fault) as victim:
            return await _Row(site, seat, name, positions, victim).with_a_dead_one()


async def _write_and_die(site: Site, seat: Seat, name: str) -> list[Position]:
    """What can be read of it was acked, and stays."""
    if site.append_command is None:
        async with site.seat() as doomed:
            writer = await doomed.dlogs.open_writer(name)
            positions = [await writer.append(each) for each in BEFORE]
            await writer.abandon()
            return positions
    process = DoomedProcess((*site.append_command, name))
    reader = await seat.dlogs.open_reader(name)
    positions, start = [], Position(0)
    try:
        for line in BEFORE:
            process.send(line)
            async with asyncio.timeout(3 * OPERATION_S_MAX):
                messages: list[StoredMessage] = []
                while not messages:
                    process.check_runs()
                    messages, start = await reader.read(start, bytes_max=1 << 20, wait_ms=500)
            positions += [each.position for each in messages]
    finally:
        process.kill()
        await reader.close()
    return positions


async def _victim(seat: Seat, name: str) -> BookieId:
    """One that has the entries that are written now."""
    last = (await seat.dlogs.metas.read(name)).meta.ledgers[-1]
    return (await seat.ledgers.info(last.ledger)).segments[-1].bookies[0]


@asynccontextmanager
async def _broken(site: Site, bookie: BookieId, fault: Fault) -> AsyncIterator[BookieId | None]:
    if fault == "nothing":
        yield None
        return
    await (site.kill if fault == "killed" else site.pause)(bookie)
    try:
        yield bookie
    finally:
        await site.mend(bookie)


class _Row:
    """Of the table: what could be done meanwhile, and what not."""

    def __init__(
        self, site: Site, seat: Seat, name: str, positions: list[Position], victim: BookieId | None
    ) -> None:
        self._site = site
        self._seat = seat
        self._name = name
        self._sent = list(BEFORE)
        self._positions = positions
        self._victim = victim
        self.found: dict[str, str] = {}

    async def _try(self, operation: str, work: Callable[[], Awaitable[None]]) -> None:
        try:
            async with asyncio.timeout(OPERATION_S_MAX):
                await work()
        except (RaftwoodError, TimeoutError, AssertionError) as error:
            self.found[operation] = f"no: {error!r}"
        else:
            self.found[operation] = "yes"

    async def with_a_living(self, writer: LogWriter) -> dict[str, str]:
        try:
            await self._all_but_open(writer)
            async with self._site.seat() as another:
                await self._try("open", lambda: self._take_over(another, writer))
        finally:
            await writer.close()
        return self.found

    async def _take_over(self, another: Seat, writer: LogWriter) -> None:
        successor = await another.dlogs.open_writer(self._name)
        await successor.append(b"taken over")
        await successor.close()
        assert not await _appends(writer), "the writer before it was not fenced"

    async def with_a_dead_one(self) -> dict[str, str]:
        writers: list[LogWriter] = []

        async def take_over() -> None:
            writers.append(await self._seat.dlogs.open_writer(self._name))

        await self._try("open", take_over)
        for writer in writers:
            try:
                await self._all_but_open(writer)
            finally:
                await writer.close()
        return self.found

    async def _all_but_open(self, writer: LogWriter) -> None:
        await self._try("append", lambda: self._append(writer))
        await self._try("rotate", lambda: self._rotate(writer))
        await self._try("read", self._read)
        await self._try("shrink", self._shrink)
        await self._try("create", self._create)

    async def _append(self, writer: LogWriter) -> None:
        await asyncio.gather(*(self._append_one(writer) for _ in range(5)))
        # The ack quorum goes on at once; one that hangs is replaced a little later.
        while self._victim in await self._written_to():
            await self._append_one(writer)
            await asyncio.sleep(0.05)

    async def _append_one(self, writer: LogWriter) -> None:
        data = b"after %d" % len(self._sent)
        self._sent.append(data)
        self._positions.append(await writer.append(data))

    async def _written_to(self) -> tuple[BookieId, ...]:
        """Where the last message went, or the next would."""
        return (await self._seat.ledgers.info(self._positions[-1] >> 64)).segments[-1].bookies

    async def _rotate(self, writer: LogWriter) -> None:
        await writer.rotate()
        await self._append_one(writer)
        assert self._positions[-1] >> 64 > self._positions[-2] >> 64

    async def _read(self) -> None:
        reader = await self._seat.dlogs.open_reader(self._name)
        start = Position(0)
        found: list[StoredMessage] = []
        while len(found) < len(self._positions):
            messages, start = await reader.read(start, bytes_max=1 << 20, wait_ms=500)
            found += messages
        await reader.close()
        assert [bytes(each.message.payload) for each in found] == self._sent
        assert [each.position for each in found] == self._positions

    async def _shrink(self) -> None:
        first = self._positions[0] >> 64
        before = next(each for each in self._positions if each >> 64 > first)
        assert await self._seat.dlogs.shrink(self._name, before) == before
        with pytest.raises(NoSuchLedger):
            await self._seat.ledgers.info(first)

    async def _create(self) -> None:
        another = f"{self._name}-another"
        await self._seat.dlogs.create(another, LogConfig(ledger=QUORUMS))
        writer = await self._seat.dlogs.open_writer(another)
        await writer.append(b"first")
        await writer.close()


async def _appends(writer: LogWriter) -> bool:
    try:
        await writer.append(b"too late")
    except RaftwoodError:
        return False
    return True


def test_a_ledger_is_opened_where_the_bookies_that_answer_can_tell_what_it_holds(
    site: Site,
) -> None:
    run(_open_with_doubts(site))


async def _open_with_doubts(site: Site) -> None:
    async with site.running(), site.seat() as seat:
        first = await seat.ledgers.create(QUORUMS)
        dead, hanging, _ = first.metadata.segments[0].bookies
        await first.abandon()
        on_the_dead = await _ledger_with_an_entry_on(seat, dead, beside=hanging)
        on_another = await _ledger_with_an_entry_on(seat, hanging, beside=dead)
        doubtful = await _ledger_with_an_entry_on(seat, dead, beside=hanging)
        await site.kill(dead)
        async with _mended(site, dead):
            # Two say that they lack it: it cannot have been acked.
            assert await _recovered(site, on_the_dead) == 2
            # One has it: it may have been.
            assert await _recovered(site, on_another) == 3
            await site.pause(hanging)
            async with _mended(site, hanging):
                async with asyncio.timeout(OPERATION_S_MAX):
                    with pytest.raises(CannotRecover):
                        await _recovered(site, doubtful)
                await site.mend(dead)
                assert await _recovered(site, doubtful) == 3


async def _ledger_with_an_entry_on(seat: Seat, bookie: BookieId, *, beside: BookieId) -> int:
    """Three entries are acked; the fourth one has reached a single bookie as the writer died."""
    while True:
        writer = await seat.ledgers.create(QUORUMS)
        if {bookie, beside} <= set(writer.metadata.segments[0].bookies):
            break
        await writer.abandon()
    for number in range(3):
        await writer.append(b"%d" % number)
    await writer.abandon()
    digest = EntryDigest(writer.ledger, QUORUMS.digest, QUORUMS.password)
    request = seat.bookies.prepare_add(
        ledger=writer.ledger,
        entry=3,
        packed=digest.pack(entry=3, last_confirmed=2, length_bytes=4, data=b"3"),
        master_key=master_key(QUORUMS.password),
    )
    sink = Sink()
    added = sink.expect(3, bookie)
    seat.bookies.add(bookie, request, sink)
    await added
    return writer.ledger


async def _recovered(site: Site, ledger: int) -> int:
    """The last entry, by a client that knows of nothing; all up to it can be read."""
    async with site.seat() as seat:
        reader = await seat.ledgers.open(ledger, recover=True)
        entries = await reader.read(first=0, last=reader.last_confirmed)
        assert [bytes(each.data) for each in entries] == [b"%d" % each.id for each in entries]
        await reader.close()
        return reader.last_confirmed


@asynccontextmanager
async def _mended(site: Site, bookie: BookieId) -> AsyncIterator[None]:
    try:
        yield
    finally:
        await site.mend(bookie)
