"""Datagrams at a receiver: pongs, batches stored without an answer, and what is dropped."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from typing import Any

import pytest

from raftwood.base.errors import Unavailable
from raftwood.clogs import receiver
from raftwood.clogs.frames import ClogsMessage, MessageType
from raftwood.clogs.receiver import DatagramListener
from raftwood.clogs.wire import decode_datagram, encode_datagram
from tests.kits.clogs.receiver import Served, data, served
from tests.kits.running import run, until

SECRET = b"0123456789abcdef"


class _Peer(asyncio.DatagramProtocol):
    def __init__(self) -> None:
        self.answers: asyncio.Queue[bytes] = asyncio.Queue()
        self.transport: Any = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport

    def datagram_received(self, data: bytes, addr: Any) -> None:
        del addr
        self.answers.put_nowait(data)

    def send(self, message: ClogsMessage, secret: bytes = SECRET) -> int:
        datagram = encode_datagram(message, secret)
        self.transport.sendto(datagram)
        return len(datagram)


@asynccontextmanager
async def listening() -> AsyncIterator[tuple[Served, DatagramListener, _Peer]]:
    async with served() as kit:
        listener = DatagramListener(kit.receiver, secret=SECRET, key="RWUDP")
        port = await listener.listen("127.0.0.1", 0)
        _, peer = await asyncio.get_running_loop().create_datagram_endpoint(
            _Peer, remote_addr=("127.0.0.1", port)
        )
        try:
            yield kit, listener, peer
        finally:
            peer.transport.close()
            await listener.close()
            await asyncio.sleep(0)  # the peer's socket is closed in the next turn


Body = Callable[[Served, DatagramListener, _Peer], Awaitable[None]]


def check(body: Body) -> None:
    async def main() -> None:
        async with listening() as parts:
            await body(*parts)

    run(main())


def test_a_ping_is_answered_by_a_pong_that_is_not_longer() -> None:
    async def body(kit: Served, listener: DatagramListener, peer: _Peer) -> None:
        del kit, listener
        size = peer.send(ClogsMessage(type=MessageType.PING, system=3, sequence=9))
        answer = await asyncio.wait_for(peer.answers.get(), 60)
        assert len(answer) <= size
        assert decode_datagram(answer, SECRET) == ClogsMessage(
            type=MessageType.PONG, system=3, sequence=10
        )

    check(body)


def test_a_batch_is_stored_once_and_nobody_is_told() -> None:
    async def body(kit: Served, listener: DatagramListener, peer: _Peer) -> None:
        del listener
        for sequence in (1, 2, 2, 1, 3):
            peer.send(data(sequence, place="wherever"))
        await until(lambda: kit.receiver.figures.batches == 5)
        assert [each.sequence for each in kit.sink.stored] == [1, 2, 3]
        assert {*kit.sink.keys} == {"RWUDP"}
        # Where its file was when it came first is not known: it is looked for.
        assert all(each.is_resumed and not each.place for each in kit.sink.stored)
        assert peer.answers.empty()

    check(body)


def test_what_is_forged_damaged_or_no_batch_is_dropped_and_counted() -> None:
    async def body(kit: Served, listener: DatagramListener, peer: _Peer) -> None:
        del listener
        peer.send(data(1), b"another secret ..")
        peer.send(ClogsMessage(type=MessageType.PING), b"another secret ..")
        peer.transport.sendto(b"short")
        peer.send(ClogsMessage(type=MessageType.LOCATE, name="a.log"))
        peer.send(data(0))
        await until(lambda: kit.receiver.figures.dropped_datagrams == 5)
        assert kit.sink.stored == []
        assert peer.answers.empty()
        assert kit.receiver.figures.refused == {"unauthenticated": 3, "invalid_input": 2}
        text = kit.metrics.render().decode()
        assert "raftwood_clogs_datagrams_dropped_total 5.0" in text

    check(body)


def test_more_than_may_wait_are_dropped_and_the_others_are_stored_in_order(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(receiver, "WAITING_MAX", 6)

    async def body(kit: Served, listener: DatagramListener, peer: _Peer) -> None:
        del listener
        kit.sink.gate.clear()
        for sequence in range(1, 5):
            for name in ("a.log", "b.log"):
                peer.send(data(sequence, name=name, producer=name.encode().ljust(16)))
        await until(lambda: kit.receiver.figures.dropped_datagrams == 2)
        kit.sink.gate.set()
        await until(lambda: kit.receiver.figures.batches == 6)
        for name in ("a.log", "b.log"):
            found = [each.sequence for each in kit.sink.stored if each.name == name]
            assert found == [1, 2, 3]
        peer.send(data(9))
        await until(lambda: len(kit.sink.stored) == 7)

    check(body)


def test_a_batch_that_cannot_be_stored_is_dropped_and_counted() -> None:
    async def body(kit: Served, listener: DatagramListener, peer: _Peer) -> None:
        kit.sink.error = Unavailable("no storage")
        peer.send(data(1))
        await until(lambda: kit.receiver.figures.dropped_datagrams == 1)
        assert listener._bytes == listener._count == 0

    check(body)


def test_what_has_come_is_stored_before_the_end() -> None:
    async def main() -> None:
        async with listening() as (kit, listener, peer):
            kit.sink.gate.clear()
            peer.send(data(1))
            await until(lambda: listener._count == 1)
            closing = asyncio.create_task(listener.close())
            await asyncio.sleep(0.01)
            kit.sink.gate.set()
            await closing
            assert len(kit.sink.stored) == 1

    run(main())
