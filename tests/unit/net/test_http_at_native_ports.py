"""A client at the wrong port learns which port it is, and where the right one is configured."""

import asyncio

import pytest
from tests.kits.net.rpc import SERVER_CREDENTIALS, Handlers, dial, raw_peer, raw_server, serving
from tests.unit.net.conftest import Run

from raftwood.base.errors import ProtocolError
from raftwood.net.frames import FrameDecoder, HttpReceived

ANSWER = b"HTTP/1.1 400 Bad Request\r\ncontent-length: 2\r\nconnection: close\r\n\r\nno"
REQUESTS = [
    b"GET / HTTP/1.1\r\nhost: 127.0.0.1\r\naccept: */*\r\n\r\n",
    b"POST /_bulk HTTP/1.1\r\nhost: 127.0.0.1\r\ncontent-length: 2\r\n\r\n{}",
    b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + bytes(20),
]


@pytest.mark.parametrize("data", [ANSWER, *REQUESTS])
def test_the_decoder_knows_http_from_other_bytes(data: bytes) -> None:
    with pytest.raises(HttpReceived):
        FrameDecoder().feed(data)
    with pytest.raises(ProtocolError, match="not a raftwood connection") as raised:
        FrameDecoder().feed(b"x" + data)
    assert not isinstance(raised.value, HttpReceived)


def test_a_native_client_at_an_http_port_is_told_where_native_ports_are_configured(
    run: Run,
) -> None:
    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(ANSWER)
        await writer.drain()

    async def main() -> None:
        async with raw_server(answer) as port:
            with pytest.raises(ProtocolError, match=f":{port} serves HTTP") as raised:
                await dial(port)
            assert "gateway.listen" in raised.value.message

    run(main())


@pytest.mark.parametrize("request_", REQUESTS)
def test_an_http_client_at_a_native_port_is_told_where_http_is(run: Run, request_: bytes) -> None:
    async def main() -> None:
        async with (
            serving(Handlers().service) as (_, port),
            raw_peer(port, authenticated=False) as peer,
        ):
            peer.send(request_)
            head, _, text = (await peer.reader.read()).partition(b"\r\n\r\n")
            status, *headers = head.split(b"\r\n")
            assert status == b"HTTP/1.1 400 Bad Request"
            assert b"content-length: %d" % len(text) in headers
            assert str(SERVER_CREDENTIALS.identity) in text.decode()
            assert "gateway.http_listen" in text.decode()

    run(main())


def test_http_on_an_authenticated_connection_is_a_broken_frame(run: Run) -> None:
    async def main() -> None:
        async with serving(Handlers().service) as (_, port), raw_peer(port) as peer:
            peer.send(REQUESTS[0])
            frame = await peer.frame()
            assert frame is not None
            assert b"protocol_error" in bytes(frame[4])

    run(main())
