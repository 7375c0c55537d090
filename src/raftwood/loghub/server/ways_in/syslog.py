"""Syslog over TCP and TLS (RFC 5424, RFC 5425, RFC 6587), and over UDP where it is switched on.

A frame is counted (`LENGTH MESSAGE`) if it begins with a digit, else it ends with its line. A
message that is not RFC 5424 is stored too: its priority if it has one, and all else as `message`.

The syslog protocol has no acks: messages under way when a connection or a gateway fails may be
lost.
"""

import asyncio
import re
from collections.abc import Iterator
from typing import Any, Final

from raftwood.base.environment import Environment
from raftwood.base.errors import ProtocolError, RaftwoodError, Unavailable
from raftwood.base.logs import get_logger
from raftwood.base.metrics import Metrics
from raftwood.base.settings import ConnectionSettings
from raftwood.loghub import json_records
from raftwood.loghub.server.ways_in.records import (
    LogstoreName,
    RecordSection,
    SectionWriter,
    encode_record,
)
from raftwood.loghub.server.ways_in.settings import AllowedNetworks, WaysInSettings
from raftwood.loghub.server.ways_in.socket_server import (
    CLOSE_S_MAX,
    Slices,
    SocketConnection,
    SocketServer,
    host_and_port,
)
from raftwood.net.tls import ServerTls

LENGTH_DIGITS_MAX: Final = 8
_SEVERITIES: Final = (
    b"emergency", b"alert", b"critical", b"error", b"warning", b"notice", b"informational",
    b"debug",
)  # fmt: skip
_FACILITIES: Final = (
    b"kern", b"user", b"mail", b"daemon", b"auth", b"syslog", b"lpr", b"news", b"uucp", b"cron",
    b"authpriv", b"ftp", b"ntp", b"audit", b"alert", b"clock", b"local0", b"local1", b"local2",
    b"local3", b"local4", b"local5", b"local6", b"local7",
)  # fmt: skip
_PRIORITY: Final = re.compile(rb"<(\d{1,3})>")
_HEAD: Final = re.compile(rb"1 (\S{1,64}) (\S{1,255}) (\S{1,128}) (\S{1,128}) (\S{1,64}) (?=[-\[])")
_ELEMENT: Final = re.compile(
    rb'\[([^ =\]"]{1,64})((?: +[^ =\]"]{1,64}="(?:[^"\\\]]|\\.)*")*) *\]', re.DOTALL
)
_PARAMETER: Final = re.compile(rb'([^ =\]"]{1,64})="((?:[^"\\\]]|\\.)*)"', re.DOTALL)
_ESCAPED: Final = re.compile(rb'\\(["\\\]])')
_NAMES: Final = (b"hostname", b"app_name", b"proc_id", b"msg_id")
_BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"


class FrameReader:
    """Splits a stream that comes in pieces into frames."""

    def __init__(self, *, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """Returns the frames that are whole now; `ProtocolError` if no frame can follow."""
        data = self._rest + data
        frames = []
        at = 0
        while at < len(data):
            if data[at] in b"123456789":
                begin, end = self._counted(data, at)
                next_at = end
            else:
                begin, end = at, data.find(b"\n", at)
                next_at = end + 1
                self._check(end - begin if end >= 0 else len(data) - begin)
            if end < 0 or end > len(data):
                break
            if frame := data[begin:end].rstrip(b"\r\n\0"):
                frames.append(frame)
            at = next_at
        self._rest = data[at:]
        return frames

    @property
    def held_bytes(self) -> int:
        return len(self._rest)

    def end(self) -> list[bytes]:
        """Returns the last line of the stream, if it was not counted."""
        rest, self._rest = self._rest, b""
        return [rest] if rest.strip() and rest[0] not in b"123456789" else []

    def _counted(self, data: bytes, at: int) -> tuple[int, int]:
        blank = data.find(b" ", at, at + LENGTH_DIGITS_MAX + 1)
        digits = data[at:blank] if blank >= 0 else data[at : at + LENGTH_DIGITS_MAX + 1]
        if not digits.isdigit() or len(digits) > LENGTH_DIGITS_MAX:
            raise ProtocolError(
                "a syslog message begins with a digit and is not counted: begin it with <PRIORITY>"
            )
        if blank < 0:
            return at, -1
        self._check(int(digits))
        return blank + 1, blank + 1 + int(digits)

    def _check(self, length: int) -> None:
        if length > self._bytes_max:
            raise ProtocolError(
                f"a syslog message is above {self._bytes_max} bytes: make it shorter, or raise "
                "ways_in.syslog_message_bytes_max"
            )


def decode_message(frame: bytes, *, received_ns: int) -> bytes:
    """Decodes a message; any bytes make a record."""
    contents: list[tuple[bytes, bytes]] = []
    time_ns = None
    rest = frame
    if (priority := _PRIORITY.match(frame)) and int(priority[1]) < 8 * len(_FACILITIES):
        facility, severity = divmod(int(priority[1]), 8)
        contents += ((b"facility", _FACILITIES[facility]), (b"severity", _SEVERITIES[severity]))
        rest = frame[priority.end() :]
        if (head := _HEAD.match(rest)) and (found := _structured(rest, head.end())):
            time, *names = head.groups()
            time_ns = json_records.from_rfc3339(time.decode("ascii", "replace"))
            contents += (
                (name, value) for name, value in zip(_NAMES, names, strict=True) if value != b"-"
            )
            parameters, at = found
            contents += parameters
            rest = rest[at + 1 :].removeprefix(_BYTE_ORDER_MARK)
    contents.append((b"message", rest))
    return encode_record(json_records.sensible(time_ns, received_ns), contents)


def _structured(text: bytes, at: int) -> tuple[list[tuple[bytes, bytes]], int] | None:
    """Returns the parameters as `ID.NAME`, and their end; None if it is no structured data."""
    found: list[tuple[bytes, bytes]] = []
    if text[at : at + 1] == b"-":
        at += 1
    else:
        while element := _ELEMENT.match(text, at):
            found += _parameters(element[1], element[2])
            at = element.end()
    return (found, at) if text[at : at + 1] in (b"", b" ") else None


def _parameters(identifier: bytes, text: bytes) -> Iterator[tuple[bytes, bytes]]:
    for name, value in _PARAMETER.findall(text):
        yield b"%b.%b" % (identifier, name), _ESCAPED.sub(rb"\1", value)


DATAGRAMS_MAX: Final = 10_000
"""Limit of datagrams that wait to be stored; more are dropped."""

_log = get_logger("ways_in")


class SyslogServer(SocketServer):
    """Peers need a certificate, or an address in `ways_in.syslog_peers`."""

    way = "syslog"

    def __init__(
        self,
        environment: Environment,
        putting: SectionWriter,
        settings: WaysInSettings,
        metrics: Metrics,
        connections: ConnectionSettings = ConnectionSettings(),  # noqa: B008
    ) -> None:
        super().__init__(
            environment,
            putting,
            settings,
            place=LogstoreName(settings.syslog_project, settings.syslog_logstore),
            peers=AllowedNetworks(settings.syslog_peers),
            metrics=metrics,
            connections=connections,
        )
        self._datagrams: SyslogDatagrams | None = None

    async def start(self, *, tls: ServerTls | None = None) -> None:
        """Listens on the addresses of the settings."""
        settings = self.settings
        if settings.syslog_listen:
            await self.listen(settings.syslog_listen)
        if settings.syslog_tls_listen:
            await self.listen(settings.syslog_tls_listen, tls=tls)
        if settings.syslog_udp_listen:
            await self.listen_for_datagrams(settings.syslog_udp_listen)

    async def serve(self, connection: SocketConnection) -> None:
        frames = FrameReader(bytes_max=self.settings.syslog_message_bytes_max)
        while data := await connection.read():
            await self._put(connection, frames.feed(data))
            connection.hold(frames.held_bytes)
        await self._put(connection, frames.end())

    async def _put(self, connection: SocketConnection, frames: list[bytes]) -> None:
        if frames:
            connection.authenticated()
            await connection.put([await self.section(frames)])

    async def section(self, frames: list[bytes]) -> RecordSection:
        now_ns = self.putting.now_ns()
        slices = Slices(self.turns)
        decoded = []
        for frame in frames:
            await slices.wait(frame)
            decoded.append(decode_message(frame, received_ns=now_ns))
        return RecordSection({}, decoded)

    async def listen_for_datagrams(self, address: str) -> None:
        """Listens for UDP datagrams, each of which is a message."""
        host, port = host_and_port(address)
        try:
            transport, datagrams = await asyncio.get_running_loop().create_datagram_endpoint(
                lambda: SyslogDatagrams(self), local_addr=(host, port)
            )
        except OSError as error:
            raise Unavailable(
                f"cannot listen on {address}: {error.strerror or error}; set "
                "ways_in.syslog_udp_listen to an address of this machine that is free"
            ) from error
        self._datagrams = datagrams
        self.ports.append(int(transport.get_extra_info("sockname")[1]))

    async def close(self) -> None:
        closing = [super().close()]
        if self._datagrams is not None:
            closing.append(self._datagrams.close())
        await asyncio.gather(*closing)


class SyslogDatagrams(asyncio.DatagramProtocol):
    """Waiting datagrams, by peer, and the task that puts them."""

    def __init__(self, server: SyslogServer) -> None:
        self._server = server
        self._waiting: dict[str, list[bytes]] = {}
        self._count = 0
        self._task: asyncio.Task[None] | None = None
        self._transport: asyncio.BaseTransport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def datagram_received(self, data: bytes, addr: tuple[Any, ...]) -> None:
        server = self._server
        frame = data.rstrip(b"\r\n\0")
        if not frame or not server.lets_in(addr[0], has_certificate=False):
            return
        if self._count >= DATAGRAMS_MAX or len(frame) > server.settings.syslog_message_bytes_max:
            server.dropped.inc()
            return
        self._count += 1
        self._waiting.setdefault(addr[0], []).append(frame)
        if self._task is None:
            self._task = asyncio.get_running_loop().create_task(self._put_all())
            self._task.add_done_callback(self._ended)

    async def _put_all(self) -> None:
        # More may arrive before the next turn: they share a put.
        await asyncio.sleep(0)
        while self._waiting:
            host = next(iter(self._waiting))
            frames = self._waiting.pop(host)
            self._count -= len(frames)
            try:
                await self._server.put([await self._server.section(frames)], host)
            except RaftwoodError as error:
                _log.warning("datagrams dropped", way="syslog", peer=host, why=error.message)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._task = None
        if not task.cancelled() and (error := task.exception()) is not None:
            _log.error("datagrams could not be put", way="syslog", exc_info=error)

    async def close(self) -> None:
        if self._transport is not None:
            self._transport.close()
        if self._task is not None:
            _, late = await asyncio.wait([self._task], timeout=CLOSE_S_MAX)
            for task in late:
                task.cancel()
                await asyncio.wait(late, timeout=CLOSE_S_MAX)
