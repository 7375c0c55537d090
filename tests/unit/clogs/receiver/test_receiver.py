"""A receiver over the network: acks, pings, what is refused, bounds and figures."""

import asyncio
from collections.abc import Awaitable, Callable

import pytest
from msgspec import structs

from raftwood.base.compression import Codec
from raftwood.base.errors import (
    InvalidInput,
    Overloaded,
    ProtocolError,
    RaftwoodError,
    TooLarge,
    Unauthenticated,
    Unavailable,
)
from raftwood.clogs.errors import OutOfOrder, PlaceMoved
from raftwood.clogs.frames import BODY_BYTES_MAX, NO_PRODUCER, ClogsMessage, MessageType
from raftwood.clogs.receiver import FOLLOWING_MAX, SYSTEMS_MAX, Ordering, ReceiverLimits, check_data
from raftwood.clogs.wire import STORE
from raftwood.net import Secret
from tests.kits.clogs.receiver import KEY, PRODUCER, Served, Shipper, data, served
from tests.kits.running import run


def check(body: Callable[[Served], Awaitable[None]], limits: ReceiverLimits | None = None) -> None:
    async def main() -> None:
        async with served(limits) as kit:
            await body(kit)

    run(main())


def test_a_file_is_located_and_its_batches_are_acknowledged_with_their_sequence() -> None:
    async def body(kit: Served) -> None:
        async with kit.shipper() as shipper:
            found = await shipper.send(ClogsMessage(type=MessageType.LOCATE, name="a.log"))
            assert found == ClogsMessage(
                type=MessageType.ACK, count=FOLLOWING_MAX, place="here:a.log"
            )
            for sequence in (1, 2, 2):
                ack = await shipper.send(data(sequence, place=found.place))
                assert ack == ClogsMessage(
                    type=MessageType.ACK,
                    producer=PRODUCER,
                    sequence=sequence,
                    count=FOLLOWING_MAX,
                    place=found.place,
                )
        assert [each.sequence for each in kit.sink.stored] == [1, 2]
        assert {*kit.sink.keys} == {KEY}

    check(body)


def test_what_follows_is_stored_behind_the_one_before_it_or_not_at_all() -> None:
    async def body(kit: Served) -> None:
        async with kit.shipper() as shipper:
            kit.sink.gate.clear()
            async with asyncio.TaskGroup() as group:
                sent = [group.create_task(shipper.send(data(1)))]
                sent += (
                    group.create_task(shipper.send(data(each, follows=True))) for each in (2, 3, 2)
                )
                await asyncio.sleep(0.05)
                assert kit.sink.keys == [KEY], "the others wait for the first one"
                kit.sink.gate.set()
            assert [each.result().sequence for each in sent] == [1, 2, 3, 2]
            assert [each.sequence for each in kit.sink.stored] == [1, 2, 3]
            with pytest.raises(OutOfOrder, match="send that one first"):
                await shipper.send(data(5, follows=True))
            assert (await shipper.send(data(2, follows=True))).sequence == 2, "it is known"
            # Nothing is said by that of a place that it has not stored the one before at.
            kit.sink.place = "there"
            with pytest.raises(OutOfOrder):
                await shipper.send(data(4, place="there:a.log", follows=True))
            await shipper.send(data(4, place="there:a.log"))
            await shipper.send(data(5, place="there:a.log", follows=True))
        assert [each.sequence for each in kit.sink.stored] == [1, 2, 3, 4, 5]

    check(body)


def test_what_follows_one_that_fails_is_not_stored() -> None:
    async def body(kit: Served) -> None:
        async with kit.shipper() as shipper:
            kit.sink.gate.clear()
            async with asyncio.TaskGroup() as group:
                first = group.create_task(_error(shipper, data(1)))
                next_one = group.create_task(_error(shipper, data(2, follows=True)))
                await asyncio.sleep(0.05)
                kit.sink.error = Unavailable("the log is away")
                kit.sink.gate.set()
            assert first.result() is Unavailable
            assert next_one.result() is OutOfOrder
            kit.sink.error = None
            await shipper.send(data(1))
            await shipper.send(data(2, follows=True))
        assert [each.sequence for each in kit.sink.stored] == [1, 2]

    check(body)


def test_a_producer_that_was_forgotten_is_asked_for_the_one_before_again() -> None:
    async def use() -> None:
        ordering, stored = Ordering(producers_max=2), []

        async def store(message: ClogsMessage) -> str:
            stored.append((message.producer[:1], message.sequence))
            return "place"

        async def give(producer: bytes, sequence: int, *, follows: bool) -> None:
            message = data(sequence, producer=producer * 16, follows=follows)
            await ordering.store(KEY, message, lambda: store(message))

        for producer in (b"a", b"b", b"c"):
            await give(producer, 1, follows=False)
        await give(b"c", 2, follows=True)
        with pytest.raises(OutOfOrder):
            await give(b"a", 2, follows=True)
        await give(b"a", 2, follows=False)
        assert stored[-2:] == [(b"c", 2), (b"a", 2)]

    asyncio.run(use())


async def _error(shipper: Shipper, message: ClogsMessage) -> type[Exception] | None:
    try:
        await shipper.send(message)
    except RaftwoodError as error:
        return type(error)
    return None


def test_a_sinks_error_reaches_the_shipper_as_what_it_is() -> None:
    async def body(kit: Served) -> None:
        async with kit.shipper() as shipper:
            with pytest.raises(PlaceMoved):
                await shipper.send(data(1, place="there"))
            assert kit.receiver.figures.refused == {"clogs_place_moved": 1}

    check(body)


def test_a_ping_is_answered_while_batches_wait() -> None:
    async def body(kit: Served) -> None:
        kit.sink.gate.clear()
        async with kit.shipper() as shipper:
            waiting = asyncio.create_task(shipper.send(data(1)))
            for ping in (0, 41, (1 << 64) - 1):
                pong = await shipper.send(
                    ClogsMessage(type=MessageType.PING, system=3, sequence=ping)
                )
                assert pong == ClogsMessage(
                    type=MessageType.PONG, system=3, sequence=(ping + 1) % (1 << 64)
                )
            assert not waiting.done()
            kit.sink.gate.set()
            await waiting

    check(body)


def test_pings_are_refused_while_nothing_can_be_stored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("raftwood.clogs.receiver.FAILING_S_MIN", 0.0)

    async def body(kit: Served) -> None:
        ping = ClogsMessage(type=MessageType.PING, sequence=1)
        async with kit.shipper() as shipper:
            for error, is_shunned in [
                (PlaceMoved("elsewhere"), False),
                (Overloaded("full"), False),
                (Unavailable("no storage"), True),
            ]:
                kit.sink.error = error
                for sequence in range(3):
                    await shipper.send(ping)
                    with pytest.raises(type(error)):
                        await shipper.send(data(sequence + 1))
                if is_shunned:
                    with pytest.raises(Unavailable, match="use another receiver"):
                        await shipper.send(ping)
            kit.sink.error = None
            await shipper.send(data(1))
            await shipper.send(ping)

    check(body)


@pytest.mark.parametrize(
    ("key", "secret", "role"),
    [
        ("RWother", Secret(b"another secret, thirty two bytes."), "key"),
        (KEY, Secret(b"another secret, thirty two bytes."), "key"),
    ],
)
def test_who_does_not_know_a_keys_secret_is_not_served(key: str, secret: Secret, role: str) -> None:
    async def body(kit: Served) -> None:
        with pytest.raises(Unauthenticated):
            async with kit.shipper(key=key, secret=secret, role=role):
                pass

    check(body)


def test_another_role_than_a_keys_may_call_nothing() -> None:
    async def body(kit: Served) -> None:
        async with kit.shipper(role="store") as shipper:
            for message in (data(1), ClogsMessage(type=MessageType.PING)):
                with pytest.raises(RaftwoodError, match="store"):
                    await shipper.send(message)
        assert kit.sink.stored == []

    check(body)


@pytest.mark.parametrize(
    ("changes", "kind"),
    [
        ({"type": MessageType.PING}, InvalidInput),
        ({"name": ""}, InvalidInput),
        ({"name": "a\nb"}, InvalidInput),
        ({"producer": NO_PRODUCER}, InvalidInput),
        ({"sequence": 0}, InvalidInput),
        ({"sequence": 1 << 63}, InvalidInput),
        ({"count": 0}, InvalidInput),
        ({"body": b""}, InvalidInput),
        ({"raw_bytes": 5}, InvalidInput),
        ({"body": bytes(BODY_BYTES_MAX + 1), "raw_bytes": BODY_BYTES_MAX + 1}, TooLarge),
    ],
)
def test_a_batch_that_no_shipper_may_send_is_refused(
    changes: dict[str, object], kind: type[Exception]
) -> None:
    check_data(data(1))
    check_data(data(1, codec=Codec.LZ4, raw_bytes=99))
    with pytest.raises(kind):
        check_data(structs.replace(data(1), **changes))


def test_what_is_refused_is_not_stored_and_the_connection_stays() -> None:
    async def body(kit: Served) -> None:
        async with kit.shipper() as shipper:
            with pytest.raises(InvalidInput):
                await shipper.send(data(0))
            with pytest.raises(InvalidInput):
                await shipper.send(ClogsMessage(type=MessageType.ACK, name="a.log"))
            with pytest.raises(InvalidInput):
                await shipper.send(ClogsMessage(type=MessageType.LOCATE, name="\0"))
            with pytest.raises(ProtocolError):
                await shipper.connection.call(STORE, b"nonsense", timeout_ms=5_000)
            await shipper.send(data(1))
        assert [each.sequence for each in kit.sink.stored] == [1]
        assert kit.receiver.figures.refused == {
            "invalid_input": 2,
            "invalid_configuration": 1,
            "protocol_error": 1,
        }

    check(body)


@pytest.mark.parametrize(
    "limits", [ReceiverLimits(batches_max=2), ReceiverLimits(bytes_max=9, connections_max=9)]
)
def test_more_than_the_bounds_under_way_is_refused_and_taken_later(
    limits: ReceiverLimits,
) -> None:
    async def body(kit: Served) -> None:
        kit.sink.gate.clear()
        async with kit.shipper() as shipper:
            first = [asyncio.create_task(shipper.send(data(number))) for number in (1, 2)]
            await asyncio.sleep(0.01)
            with pytest.raises(Overloaded, match="2 batches of 8 bytes"):
                await shipper.send(data(3))
            kit.sink.gate.set()
            await asyncio.gather(*first)
            await shipper.send(data(3))
        assert sorted(each.sequence for each in kit.sink.stored) == [1, 2, 3]

    check(body, limits)


def test_a_batch_alone_is_taken_though_it_is_above_the_bound_of_bytes() -> None:
    async def body(kit: Served) -> None:
        async with kit.shipper() as shipper:
            await shipper.send(data(1))

    check(body, ReceiverLimits(bytes_max=1))


def test_a_shipper_that_goes_away_leaves_nothing_under_way() -> None:
    async def body(kit: Served) -> None:
        kit.sink.gate.clear()
        async with kit.shipper() as shipper:
            waiting = asyncio.create_task(shipper.send(data(1)))
            await asyncio.sleep(0.01)
            assert b"raftwood_clogs_batches_under_way 1.0" in kit.metrics.render()
        await asyncio.gather(waiting, return_exceptions=True)
        for _ in range(100):
            if b"raftwood_clogs_batches_under_way 0.0" in kit.metrics.render():
                break
            await asyncio.sleep(0.01)
        assert b"raftwood_clogs_bytes_under_way 0.0" in kit.metrics.render()

    check(body)


def test_figures_tell_frames_batches_records_bytes_and_systems() -> None:
    async def body(kit: Served) -> None:
        async with kit.shipper() as shipper:
            await shipper.send(ClogsMessage(type=MessageType.PING))
            await shipper.send(data(1))
            await shipper.send(data(2, system=8))
            await shipper.send(data(3))
        text = kit.metrics.render().decode()
        for line in (
            "raftwood_clogs_frames_total 4.0",
            "raftwood_clogs_pings_total 1.0",
            "raftwood_clogs_batches_total 3.0",
            "raftwood_clogs_records_total 6.0",
            "raftwood_clogs_bytes_total 12.0",
            'raftwood_clogs_system_batches_total{system="7"} 2.0',
            'raftwood_clogs_system_batches_total{system="8"} 1.0',
        ):
            assert line in text
        figures = kit.receiver.figures
        for system in range(1000, 1000 + 2 * SYSTEMS_MAX):
            figures.stored(system=system, records=1, size=1)
        assert len(figures.systems) == SYSTEMS_MAX + 1
        assert figures.systems["other"] == SYSTEMS_MAX + 2

    check(body)
