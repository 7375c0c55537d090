"""Connections to bookies: answers in pieces and out of order, bounds, timeouts, and ends."""

import asyncio
import itertools

import pytest

from raftwood.base.errors import Overloaded, TooLarge
from raftwood.dlog.bookkeeper.binary_protocol import BinaryConnection
from raftwood.dlog.bookkeeper.bookies import BookKeeperBookies
from raftwood.dlog.bookkeeper.connection import BookKeeperSettings
from raftwood.dlog.errors import BookieUnavailable, Fenced, NoSuchEntry
from raftwood.dlog.ledgers.metadata import BookieId
from raftwood.dlog.ledgers.seams import AddRequest
from raftwood.testing.fuzzer import Mutator
from tests.kits.dlog.fake_bookie import (
    BOOKIE,
    KEY,
    Heard,
    added,
    fake_bookie,
    read,
    response_to,
)
from tests.kits.running import in_virtual_time

V3 = BookKeeperSettings(use_v3_alone=True)
HASTY = BookKeeperSettings(request_timeout_ms=100, reconnect_pause_ms=1)


def prepare(bookies: BookKeeperBookies, entry: int, data: bytes = b"data") -> AddRequest:
    return bookies.prepare_add(ledger=5, entry=entry, packed=[bytes(32), data], master_key=KEY)


def test_answers_find_whoever_waits_in_any_order_and_in_any_pieces() -> None:
    async def main() -> None:
        async with fake_bookie() as (fake, bookies):
            heard = Heard()
            for entry in range(4):
                bookies.add(BOOKIE, prepare(bookies, entry), heard)
            assert heard.adds == []
            reading = asyncio.create_task(bookies.read(BOOKIE, ledger=5, entry=2))
            for _ in range(5):
                await fake.frames.get()
            answers = b"".join(
                (added(5, 3), read(5, 2, b"x" * 1000), added(5, 0), added(5, 2, 104), added(5, 1))
            )
            for at in range(len(answers)):
                fake.send(answers[at : at + 1])
                await asyncio.sleep(0)
            found = await heard.until(4)
            assert [entry for entry, _ in found] == [3, 0, 2, 1]
            assert [type(error) for _, error in found] == [
                type(None),
                type(None),
                Fenced,
                type(None),
            ]
            assert await reading == b"x" * 1000
            assert fake.connections == 1

    in_virtual_time(main())


def test_all_that_wait_for_one_key_are_answered_in_order() -> None:
    async def main() -> None:
        async with fake_bookie() as (fake, bookies):
            heard = [Heard(), Heard(), Heard()]
            request = prepare(bookies, 0)
            for each in heard:
                bookies.add(BOOKIE, request, each)
            for _ in heard:
                await fake.frames.get()
            fake.send(added(5, 0, 106) + added(5, 0) + added(5, 0, 101))
            kinds = [type((await each.until(1))[0][1]) for each in heard]
            assert kinds == [Overloaded, type(None), BookieUnavailable]

    in_virtual_time(main())


def test_an_answer_that_nobody_waits_for_is_passed_over() -> None:
    async def main() -> None:
        async with fake_bookie() as (fake, bookies):
            heard = Heard()
            bookies.add(BOOKIE, prepare(bookies, 0), heard)
            await fake.frames.get()
            fake.send(added(5, 9) + read(5, 9, b"", 2) + added(5, 0) + added(5, 0))
            assert await heard.until(1) == [(0, None)]

    in_virtual_time(main())


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        (1 << 31).to_bytes(4),
        bytes(28),
        (23).to_bytes(4) + bytes(24),
        added(5, 0).replace(b"\x02\x01", b"\x02\x07"),
    ],
)
def test_what_is_no_answer_of_a_bookie_ends_the_connection(answer: bytes) -> None:
    async def main() -> None:
        async with fake_bookie() as (fake, bookies):
            heard = Heard()
            bookies.add(BOOKIE, prepare(bookies, 0), heard)
            await fake.frames.get()
            fake.send(answer)
            ((_, error),) = await heard.until(1)
            assert isinstance(error, BookieUnavailable)
            assert "breaks the protocol" in error.message

    in_virtual_time(main())


def test_any_bytes_are_answers_or_end_the_connection() -> None:
    async def main() -> None:
        async def dial(_protocol: asyncio.Protocol) -> asyncio.Transport:
            never: asyncio.Future[asyncio.Transport] = asyncio.get_running_loop().create_future()
            return await never

        seeds = [added(5, 0) + read(5, 2, b"x" * 40) + added(5, 1, 104)]
        ended = 0
        for data in itertools.islice(Mutator(seeds, seed=1), 2000):
            connection = BinaryConnection(BOOKIE, BookKeeperSettings(frame_bytes_max=1000), dial)
            heard = Heard()
            connection.add(5, 0, b"", heard)
            half = len(data) // 2
            connection.data_received(data[:half])
            connection.data_received(data[half:])
            ended += connection.error is not None
            await connection.close()
            assert len(heard.adds) == 1
        assert 200 < ended < 1800

    in_virtual_time(main())


def test_a_connection_that_ends_fails_all_and_the_next_request_makes_another() -> None:
    async def main() -> None:
        async with fake_bookie(HASTY) as (fake, bookies):
            heard = Heard()
            for entry in range(3):
                bookies.add(BOOKIE, prepare(bookies, entry), heard)
            reading = asyncio.create_task(bookies.read(BOOKIE, ledger=5, entry=0))
            for _ in range(4):
                await fake.frames.get()
            fake.hang_up()
            assert [entry for entry, _ in await heard.until(3)] == [0, 1, 2]
            assert all(isinstance(error, BookieUnavailable) for _, error in heard.adds)
            with pytest.raises(BookieUnavailable, match="ended the connection"):
                await reading
            await asyncio.sleep(0.01)
            bookies.add(BOOKIE, prepare(bookies, 3), heard)
            await fake.frames.get()
            fake.send(added(5, 3))
            assert (await heard.until(4))[-1] == (3, None)
            assert fake.connections == 2

    in_virtual_time(main())


def test_a_bookie_that_says_nothing_is_given_up_in_time() -> None:
    async def main() -> None:
        async with fake_bookie(HASTY) as (fake, bookies):
            heard = Heard()
            began = asyncio.get_running_loop().time()
            bookies.add(BOOKIE, prepare(bookies, 0), heard)
            await fake.frames.get()
            ((_, error),) = await heard.until(1)
            assert isinstance(error, BookieUnavailable)
            assert asyncio.get_running_loop().time() - began < 1

    in_virtual_time(main())


def test_one_request_that_is_never_answered_is_given_up_among_others() -> None:
    async def main() -> None:
        async with fake_bookie(HASTY) as (fake, bookies):
            forgotten, heard = Heard(), Heard()
            bookies.add(BOOKIE, prepare(bookies, 1000), forgotten)
            entry = 0
            while not forgotten.adds:
                bookies.add(BOOKIE, prepare(bookies, entry), heard)
                await asyncio.sleep(0.01)
                fake.send(added(5, entry))
                entry += 1
                await heard.until(entry)
            assert isinstance(forgotten.adds[0][1], BookieUnavailable)
            assert all(error is None for _, error in heard.adds)
            assert fake.connections == 1

    in_virtual_time(main())


def test_what_is_under_way_has_a_bound() -> None:
    async def main() -> None:
        async with fake_bookie(BookKeeperSettings(in_flight_max=2)) as (fake, bookies):
            heard = Heard()
            for entry in range(3):
                bookies.add(BOOKIE, prepare(bookies, entry), heard)
            assert heard.adds == []
            ((entry, error),) = await heard.until(1)
            assert (entry, type(error)) == (2, Overloaded)
            for _ in range(2):
                await fake.frames.get()
            fake.send(added(5, 0) + added(5, 1))
            await heard.until(3)

    in_virtual_time(main())


def test_bytes_that_a_bookie_does_not_take_have_a_bound() -> None:
    async def main() -> None:
        settings = BookKeeperSettings(unsent_bytes_max=1 << 20)
        async with fake_bookie(settings) as (fake, bookies):
            heard = Heard()
            data = bytes(1 << 18)
            for entry in range(10):
                bookies.add(BOOKIE, prepare(bookies, entry, data), heard)
            await asyncio.sleep(0)
            kinds = {type(error) for _, error in await heard.until(1)}
            assert kinds == {Overloaded}
            sent = 10 - len(heard.adds)
            for _ in range(sent):
                assert len(await fake.frames.get()) > len(data)

    in_virtual_time(main())


def test_an_entry_above_the_bookies_limit_is_refused() -> None:
    async def main() -> None:
        async with fake_bookie() as (_, bookies):
            with pytest.raises(TooLarge, match="make entries smaller"):
                prepare(bookies, 0, bytes(5 << 20))

    in_virtual_time(main())


def test_a_bookie_that_cannot_be_reached_is_left_alone_for_a_while() -> None:
    tries = 0

    async def resolve(_bookie: BookieId) -> tuple[str, int]:
        nonlocal tries
        tries += 1
        return "127.0.0.1", 1

    async def main() -> None:
        bookies = BookKeeperBookies(resolve, BookKeeperSettings(reconnect_pause_ms=50))
        for _ in range(3):
            with pytest.raises(BookieUnavailable, match="cannot connect"):
                await bookies.read(BOOKIE, ledger=5, entry=0)
        assert tries == 1
        await asyncio.sleep(0.06)
        with pytest.raises(BookieUnavailable, match="cannot connect"):
            await bookies.read(BOOKIE, ledger=5, entry=0)
        assert tries == 2
        await bookies.close()

    in_virtual_time(main())


def test_a_client_that_is_closed_fails_what_is_under_way_and_asks_nobody() -> None:
    async def main() -> None:
        async with fake_bookie() as (fake, bookies):
            heard = Heard()
            bookies.add(BOOKIE, prepare(bookies, 0), heard)
            await fake.frames.get()
            await bookies.close()
            assert isinstance(heard.adds[0][1], BookieUnavailable)
            with pytest.raises(BookieUnavailable):
                await bookies.read(BOOKIE, ledger=5, entry=0)
            with pytest.raises(BookieUnavailable, match="closed"):
                await bookies.read_last_confirmed(BOOKIE, ledger=5)
            assert fake.connections == 1

    in_virtual_time(main())


def test_a_read_that_fences_is_not_taken_for_one_that_does_not() -> None:
    async def main() -> None:
        async with fake_bookie() as (fake, bookies):
            plain = asyncio.create_task(bookies.read(BOOKIE, ledger=5, entry=0))
            await fake.frames.get()
            fencing = asyncio.create_task(bookies.read(BOOKIE, ledger=5, entry=0, fence_key=KEY))
            await fake.frames.get()
            assert fake.connections == 2  # only the third protocol tells them apart
            plain.cancel()
            fencing.cancel()
            await asyncio.wait((plain, fencing))

    in_virtual_time(main())


def test_all_goes_by_the_third_protocol_where_it_is_asked_for() -> None:
    async def main() -> None:
        async with fake_bookie(V3) as (fake, bookies):
            heard = Heard()
            for entry in range(2):
                bookies.add(BOOKIE, prepare(bookies, entry), heard)
            frames = [await fake.frames.get() for _ in range(2)]
            fake.send(
                response_to(frames[1], entryId=1) + response_to(frames[0], status=504, entryId=0)
            )
            assert [(entry, type(error)) for entry, error in await heard.until(2)] == [
                (1, type(None)),
                (0, Fenced),
            ]
            reading = asyncio.create_task(bookies.read(BOOKIE, ledger=5, entry=7))
            fake.send(response_to(await fake.frames.get(), entryId=7, body=b"packed"))
            assert await reading == b"packed"
            missing = asyncio.create_task(bookies.read(BOOKIE, ledger=5, entry=8))
            fake.send(response_to(await fake.frames.get(), status=403))
            with pytest.raises(NoSuchEntry):
                await missing
            assert fake.connections == 1

    in_virtual_time(main())


def test_a_wait_for_the_last_confirmed_entry_is_made_again_until_its_time_is_over() -> None:
    async def main() -> None:
        settings = BookKeeperSettings(request_timeout_ms=200)
        async with fake_bookie(settings) as (fake, bookies):
            waiting = asyncio.create_task(
                bookies.wait_last_confirmed(BOOKIE, ledger=5, after=3, timeout_ms=5000)
            )
            for _ in range(3):
                fake.send(response_to(await fake.frames.get(), maxLAC=3))
            fake.send(response_to(await fake.frames.get(), maxLAC=4))
            assert await waiting == 4
            waiting = asyncio.create_task(
                bookies.wait_last_confirmed(BOOKIE, ledger=5, after=4, timeout_ms=1)
            )
            frame = await fake.frames.get()
            await asyncio.sleep(0.01)
            fake.send(response_to(frame, maxLAC=4))
            assert await waiting == 4

    in_virtual_time(main())


def test_the_last_confirmed_entry_is_written_and_read() -> None:
    async def main() -> None:
        async with fake_bookie() as (fake, bookies):
            writing = asyncio.create_task(
                bookies.write_last_confirmed(
                    BOOKIE, ledger=5, last_confirmed=7, master_key=KEY, digest=b"dddd"
                )
            )
            frame = await fake.frames.get()
            body = (5).to_bytes(8) + (7).to_bytes(8) + b"dddd"
            assert body in frame
            fake.send(response_to(frame))
            await writing
            for told, expected in ((body, 7), (b"", -1)):
                reading = asyncio.create_task(bookies.read_last_confirmed(BOOKIE, ledger=5))
                frame = await fake.frames.get()
                fake.send(response_to(frame, lacBody=told, lastEntryBody=b"packed"))
                assert await reading == (expected, b"packed")
            reading = asyncio.create_task(bookies.read_last_confirmed(BOOKIE, ledger=5))
            fake.send(response_to(await fake.frames.get(), lacBody=b"short"))
            with pytest.raises(BookieUnavailable, match="short"):
                await reading

    in_virtual_time(main())
