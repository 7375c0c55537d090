"""Senders of syslog over TCP, TLS and UDP: Python's own handler, and RFC 5424 in both framings."""

import asyncio
import logging
import logging.handlers
import socket
import ssl
from contextlib import AbstractContextManager, suppress
from pathlib import Path

import pytest

from raftwood.loghub.server.ways_in.settings import WaysInSettings
from tests.kits.loghub.certificates import Certificates
from tests.kits.loghub.ways_in import LOGSTORE, PROJECT, WaysInKit, ways_in_kit
from tests.kits.running import run

LOCAL = ("127.0.0.0/8",)


def message(number: int) -> bytes:
    return (
        f"<165>1 2026-11-16T08:00:00.003+01:00 host.example shop 42 ID{number} "
        f'[order@32473 number="{number}" note="a \\"b\\" \\] c"] \ufeffbought {number}'
    ).encode()


def counted(count: int) -> bytes:
    return b"".join(b"%d %b" % (len(each), each) for each in map(message, range(count)))


def in_lines(count: int) -> bytes:
    return b"".join(b"%b\n" % message(number) for number in range(count))


def settings(**more: object) -> WaysInSettings:
    given = {"syslog_project": PROJECT, "syslog_logstore": LOGSTORE, **more}
    return WaysInSettings(**given)  # type: ignore[arg-type]


def send(port: int, data: bytes, context: ssl.SSLContext | None = None) -> None:
    """In pieces that end anywhere."""
    with socket.create_connection(("127.0.0.1", port), timeout=60) as plain:
        peer = context.wrap_socket(plain, server_hostname="localhost") if context else plain
        with peer:
            for at in range(0, len(data), 1000):
                peer.sendall(data[at : at + 1000])


async def check(kit: WaysInKit, count: int) -> None:
    stored = await kit.stored_when(count)
    assert len(stored) == count
    for number, each in enumerate(stored):
        assert each.source == "127.0.0.1"
        assert each.time_ns == 1_794_812_400_003_000_000
        assert each.contents == {
            "facility": "local4",
            "severity": "notice",
            "hostname": "host.example",
            "app_name": "shop",
            "proc_id": "42",
            "msg_id": f"ID{number}",
            "order@32473.number": str(number),
            "order@32473.note": 'a "b" ] c',
            "message": f"bought {number}",
        }


@pytest.mark.parametrize("data", [counted(100), in_lines(100)], ids=["counted", "lines"])
def test_messages_over_tcp_are_stored_in_order(tmp_path: Path, data: bytes) -> None:
    async def main() -> None:
        given = settings(syslog_listen="127.0.0.1:0", syslog_peers=LOCAL)
        async with ways_in_kit(tmp_path, given) as kit:
            await asyncio.to_thread(send, kit.sockets.syslog.ports[0], data)
            await check(kit, 100)

    run(main())


def test_messages_over_udp_are_stored(tmp_path: Path) -> None:
    async def main() -> None:
        given = settings(syslog_udp_listen="127.0.0.1:0", syslog_peers=LOCAL)
        async with ways_in_kit(tmp_path, given) as kit:
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
                for number in range(10):
                    sender.sendto(message(number), ("127.0.0.1", kit.sockets.syslog.ports[0]))
            await check(kit, 10)

    run(main())


def test_the_handler_of_the_standard_library_is_understood(tmp_path: Path) -> None:
    def log(port: int) -> None:
        handler = logging.handlers.SysLogHandler(
            address=("127.0.0.1", port), socktype=socket.SOCK_STREAM
        )
        # Over TCP it neither counts nor ends a message by itself.
        handler.append_nul = False
        handler.setFormatter(logging.Formatter("%(name)s: %(message)s\n"))
        logger = logging.getLogger("interop.syslog")
        logger.propagate = False
        logger.addHandler(handler)
        logger.error("it broke")
        logger.removeHandler(handler)
        handler.close()

    async def main() -> None:
        given = settings(syslog_listen="127.0.0.1:0", syslog_peers=LOCAL)
        async with ways_in_kit(tmp_path, given) as kit:
            await asyncio.to_thread(log, kit.sockets.syslog.ports[0])
            (stored,) = await kit.stored_when(1)
        assert stored.contents == {
            "facility": "user",
            "severity": "error",
            "message": "interop.syslog: it broke",
        }

    run(main())


def encrypted(files: Certificates, **more: object) -> WaysInSettings:
    return settings(syslog_tls_listen="127.0.0.1:0", **files.server, **more)


def may_be_cut() -> AbstractContextManager[None]:
    """A refusal shows to the sender now or later, or not at all if it is done before."""
    return suppress(OSError)


def test_over_tls_a_certificate_lets_in(tmp_path: Path) -> None:
    files = Certificates(tmp_path)

    async def main() -> None:
        given = encrypted(files, **files.authorities)
        async with ways_in_kit(tmp_path, given) as kit:
            port = kit.sockets.syslog.ports[0]
            with may_be_cut():
                await asyncio.to_thread(send, port, counted(3), files.client(has_certificate=False))
            await asyncio.to_thread(send, port, counted(5), files.client(has_certificate=True))
            await check(kit, 5)

    run(main())


def test_over_tls_an_address_lets_in_too(tmp_path: Path) -> None:
    files = Certificates(tmp_path)

    async def main() -> None:
        async with ways_in_kit(tmp_path, encrypted(files, syslog_peers=LOCAL)) as kit:
            port = kit.sockets.syslog.ports[0]
            await asyncio.to_thread(send, port, counted(5), files.client(has_certificate=False))
            await check(kit, 5)

    run(main())


def test_a_stranger_is_not_let_in(tmp_path: Path) -> None:
    async def main() -> None:
        given = settings(
            syslog_listen="127.0.0.1:0",
            syslog_udp_listen="127.0.0.1:0",
            syslog_peers=("10.0.0.0/8", "fd00::/8"),
        )
        async with ways_in_kit(tmp_path, given) as kit:
            tcp, udp = kit.sockets.syslog.ports
            with may_be_cut():
                await asyncio.to_thread(send, tcp, counted(5))
            with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
                sender.sendto(message(0), ("127.0.0.1", udp))
            await asyncio.sleep(0.05)
            assert await kit.stored() == []

    run(main())
