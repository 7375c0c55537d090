"""Fluent Forward over TCP and TLS: events are put, and chunks acked once they are durable.

It supports all four modes: message, forward, packed forward, and compressed packed forward. A text
may hold any bytes, so texts stay bytes. Before anything is decoded its lengths are checked against
the bytes that arrived: a few bytes cannot make the decoder reserve much memory.

In the handshake with a shared key (HELO, PING, PONG) both sides prove that they know the key, over
a nonce of the server and a salt of the client.
"""

import asyncio
import base64
import hashlib
import hmac
import random
import struct
from collections.abc import Callable, Iterator
from operator import itemgetter
from typing import Any, Final, TypeAlias

import msgpack
import msgspec

from raftwood.base.environment import Environment
from raftwood.base.errors import ProtocolError, RaftwoodError, Unauthenticated
from raftwood.base.logs import get_logger
from raftwood.base.metrics import Metrics
from raftwood.base.settings import ConnectionSettings, Secret
from raftwood.loghub import json_records
from raftwood.loghub.decode_bounds import DEFAULT_BOUNDS, SLICE_BYTES, DecodeBounds
from raftwood.loghub.errors import BatchTooLarge
from raftwood.loghub.server.content_encoding import inflated
from raftwood.loghub.server.ways_in.records import (
    PAUSE,
    LogstoreName,
    RecordSection,
    SectionWriter,
    encode_record,
    gathered,
    sliced,
)
from raftwood.loghub.server.ways_in.settings import AllowedNetworks, WaysInSettings
from raftwood.loghub.server.ways_in.socket_server import (
    HANDSHAKE_S_MAX,
    Slices,
    SocketConnection,
    SocketServer,
)
from raftwood.net.tls import ServerTls

_EVENT_TIME: Final = 0
_EVENT: Final = struct.Struct(">II")
_DEPTH_MAX: Final = 64
_VALUE_BYTES: Final = 8
"""A message whose values take fewer bytes on average is refused: it would grow many times."""
_VALUES_MAX_LEAST: Final = 4_096
_SCANNED_VALUES: Final = 8_192
"""Limit of values scanned before other tasks run: a millisecond or two."""
_MESSAGE_VALUES: Final = 4
"""Splitting off a message costs as much work as so many values."""
_VALUE_WORK: Final = 4
"""A byte of a small event may be a value, which is as much work as so many bytes of text."""
_CHECKED_VALUE_WORK: Final = 32
"""The work of a value, in bytes, in an event that was checked value by value."""


def _kinds() -> tuple[tuple[int, int, int], ...]:
    """Returns by first byte: the bytes of length that follow, the fixed bytes, the elements.

    For elements, -1 means as many as the length says, -2 twice as many, and 0 none: then the length
    counts bytes.
    """
    fixed = {0xC0: 0, 0xC2: 0, 0xC3: 0, 0xCA: 4, 0xCB: 8, 0xCC: 1, 0xCD: 2, 0xCE: 4, 0xCF: 8}
    fixed |= {0xD0: 1, 0xD1: 2, 0xD2: 4, 0xD3: 8, 0xD4: 2, 0xD5: 3, 0xD6: 5, 0xD7: 9, 0xD8: 17}
    sized = {0xC4: 1, 0xC5: 2, 0xC6: 4, 0xD9: 1, 0xDA: 2, 0xDB: 4}
    extended = {0xC7: 1, 0xC8: 2, 0xC9: 4}
    found = []
    for first in range(256):
        kind = (0, 0, 0)
        if 0x80 <= first <= 0x8F:
            kind = (0, 0, 2 * (first - 0x80))
        elif 0x90 <= first <= 0x9F:
            kind = (0, 0, first - 0x90)
        elif 0xA0 <= first <= 0xBF:
            kind = (0, first - 0xA0, 0)
        elif first in sized:
            kind = (sized[first], 0, 0)
        elif first in extended:
            kind = (extended[first], 1, 0)
        elif first in (0xDC, 0xDD):
            kind = (2 if first == 0xDC else 4, 0, -1)
        elif first in (0xDE, 0xDF):
            kind = (2 if first == 0xDE else 4, 0, -2)
        elif first in fixed:
            kind = (0, fixed[first], 0)
        found.append(kind)
    return tuple(found)


_KINDS: Final = _kinds()


class MessageReader:
    """Splits a stream that comes in pieces into whole msgpack values, without decoding them."""

    def __init__(self, *, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self._data = bytearray()
        self._at = 0
        self._missing = 1
        """Values that are still to come until the message is whole."""
        self._values = 0

    def feed(self, data: bytes) -> list[bytes]:
        """Returns the messages that are whole now; `ProtocolError` if one can never be."""
        return [message for part in self.feed_in_slices(data) for message in part]

    def feed_in_slices(self, data: bytes) -> Iterator[list[bytes]]:
        """Like `feed`, in slices of messages: scanning values of one byte each takes long."""
        self._data += data
        found: list[bytes] = []
        left = _SCANNED_VALUES
        while True:
            left -= self._scan(left)
            if not self._missing:
                found.append(bytes(self._data[: self._at]))
                del self._data[: self._at]
                self._at, self._missing, self._values = 0, 1, 0
                left -= _MESSAGE_VALUES
            elif left > 0:
                break  # the rest is still to come
            if left <= 0:
                yield found
                found, left = [], _SCANNED_VALUES
        yield found

    @property
    def held_bytes(self) -> int:
        """Returns the bytes held of a message that is not whole yet."""
        return len(self._data)

    def _scan(self, values_max: int) -> int:
        """Scans on to the message's end, over `values_max` values at most; returns how many."""
        data, at, missing, values = self._data, self._at, self._missing, self._values
        size, bytes_max = len(data), self.bytes_max
        first, end_value = values, values + values_max
        while missing and at < size and values < end_value:
            width, fixed, elements = _KINDS[data[at]]
            if width:
                if at + 1 + width > size:
                    break
                length = int.from_bytes(data[at + 1 : at + 1 + width], "big")
                if elements:
                    elements *= -length
                else:
                    fixed += length
            end = at + 1 + width + fixed
            # Each value that is still to come has one byte at least.
            if end + missing - 1 + elements > bytes_max:
                raise ProtocolError(
                    f"a Fluent message is above {bytes_max} bytes: send smaller chunks, or raise "
                    "ways_in.fluent_message_bytes_max"
                )
            if end > size:
                break
            at = end
            missing += elements - 1
            values += 1
        self._at, self._missing, self._values = at, missing, values
        if values > max(bytes_max // _VALUE_BYTES, _VALUES_MAX_LEAST):
            raise ProtocolError(
                f"a Fluent message has more than {bytes_max // _VALUE_BYTES} values: send smaller "
                "chunks, or raise ways_in.fluent_message_bytes_max"
            )
        return values - first


def unpacked(data: bytes) -> Any:
    """Decodes a value: maps as lists of pairs, arrays as tuples, texts as bytes."""
    try:
        return msgpack.unpackb(
            data, raw=True, use_list=False, object_pairs_hook=list, strict_map_key=False
        )
    except (ValueError, RecursionError, OverflowError, msgpack.UnpackException) as error:
        raise ProtocolError(f"a Fluent message cannot be read: {str(error)[:200]}") from error


_Event: TypeAlias = tuple[Any, int]
"""An event, and the work that it costs."""
_NO_EVENT: Final = object()
_PAUSE: Final[_Event] = (_NO_EVENT, SLICE_BYTES)
"""A pause without an event: one was left out, or there was work before the first."""


class ForwardMessage(msgspec.Struct):
    """A message's events, and the chunk to ack once they are durable."""

    sections: Iterator[RecordSection]
    """Raises `ProtocolError` for an invalid event. Some sections are pauses, without records."""
    chunk: bytes | None = None
    """Known once all events are read, because it follows them."""
    too_large: int = 0
    """Events above a bound, which are left out: a refused chunk would be sent for ever."""


class _Values:
    """The values of a message, each decoded by itself; a skip finds the end of a value."""

    def __init__(self, data: bytes, bounds: DecodeBounds) -> None:
        self._data = data
        self._bounds = bounds
        self._unpacker = msgpack.Unpacker(max_buffer_size=max(len(data), 1))
        self._unpacker.feed(data)

    @property
    def at(self) -> int:
        return int(self._unpacker.tell())

    @property
    def is_at_end(self) -> bool:
        return self.at >= len(self._data)

    @property
    def is_at_array(self) -> bool:
        first = self._data[self.at : self.at + 1]
        return b"\x90" <= first <= b"\x9f" or first in (b"\xdc", b"\xdd")

    def array(self) -> int:
        """Enters an array; returns the number of its values."""
        return int(self._read(self._unpacker.read_array_header))

    def skip(self) -> bytes:
        """Returns the next value undecoded."""
        at = self.at
        self._read(self._unpacker.skip)
        return self._data[at : self.at]

    def next(self) -> Any:
        return self.next_and_work()[0]

    def next_and_work(self) -> tuple[Any, int]:
        """Returns the next value and its work, in bytes of a large text."""
        data = self.skip()
        size = len(data)
        if size <= self._bounds.keys_max:
            work = _VALUE_WORK * size
        else:
            work = size + _CHECKED_VALUE_WORK * _check(data, self._bounds)
        return unpacked(data), work

    @staticmethod
    def _read(read: Callable[[], Any]) -> Any:
        try:
            return read()
        except (ValueError, OverflowError, msgpack.UnpackException) as error:
            raise ProtocolError(f"a Fluent message cannot be read: {str(error)[:200]}") from error


def _check(data: bytes, bounds: DecodeBounds) -> int:
    """Returns how many values an event has; `BatchTooLarge` if that is above a bound."""
    at = values = 0
    size = len(data)
    while at < size:
        width, fixed, elements = _KINDS[data[at]]
        length = int.from_bytes(data[at + 1 : at + 1 + width], "big")
        if elements == -2 and length > bounds.keys_max:
            raise bounds.too_many("an event of a Fluent message", "keys")
        at += 1 + width + fixed + (length if width and not elements else 0)
        values += 1
        # A map's keys count as values here.
        if values > 2 * bounds.values_max:
            raise bounds.too_many("an event of a Fluent message", "values")
    return values


def decode_message(
    data: bytes, *, received_ns: int, bytes_max: int, bounds: DecodeBounds = DEFAULT_BOUNDS
) -> ForwardMessage:
    """Decodes a message of any mode; `ProtocolError` or `InvalidInput` if it is invalid.
    `bytes_max` bounds what is decompressed.
    """
    values = _Values(data, bounds)
    count = values.array() if values.is_at_array else 0
    tag = values.next() if 2 <= count <= 4 else None
    if type(tag) is not bytes:
        raise ProtocolError("a Fluent message is no array that begins with a tag")
    found = ForwardMessage(iter(()))

    def judged(each: _Values) -> Iterator[_Event]:
        try:
            yield each.next_and_work()
        except BatchTooLarge:
            found.too_large += 1
            yield _PAUSE

    def events() -> Iterator[_Event]:
        left = count - 2
        if values.is_at_array:
            for _ in range(values.array()):
                yield from judged(values)
        else:
            second = values.next()
            if isinstance(second, bytes):
                options = _options(values, left)
                found.chunk = _chunk(options)
                if options.get(b"compressed") == b"gzip":
                    parts = []
                    for part in inflated(second, bytes_max=bytes_max):
                        parts.append(part)
                        yield _PAUSE
                    second = b"".join(parts)
                packed = _Values(second, bounds)
                while not packed.is_at_end:
                    yield from judged(packed)
                return
            if not left:
                raise ProtocolError("a Fluent message has no record")
            for record, work in judged(values):
                yield (record if record is _NO_EVENT else (second, record)), work
            left -= 1
        found.chunk = _chunk(_options(values, left))

    def sections() -> Iterator[RecordSection]:
        for part in sliced(events(), itemgetter(1)):
            records = [_record(event, received_ns) for event, _ in part if event is not _NO_EVENT]
            yield RecordSection({b"tag": tag}, records)
            if records and sum(map(itemgetter(1), part)) >= SLICE_BYTES:
                yield PAUSE

    found.sections = sections()
    return found


def _options(values: _Values, left: int) -> dict[bytes, Any]:
    """Returns the options: the first of the remaining values of a message."""
    options = values.next() if left else None
    if not isinstance(options, list | None):
        raise ProtocolError("the options of a Fluent message are no map")
    return {key: value for key, value in options or () if isinstance(key, bytes)}


def _chunk(options: dict[bytes, Any]) -> bytes | None:
    chunk = options.get(b"chunk")
    return chunk if isinstance(chunk, bytes) and chunk else None


def _record(event: Any, received_ns: int) -> bytes:
    if not (type(event) is tuple and len(event) >= 2 and isinstance(event[1], list)):
        raise ProtocolError("an event of a Fluent message is no [time, record]")
    time_ns = json_records.sensible(_time(event[0]), received_ns)
    return encode_record(time_ns, ((_text(key), _text(value)) for key, value in event[1]))


def _time(value: Any) -> int | None:
    # Fluent Bit wraps it with metadata: [[time, {…}], record].
    if type(value) is tuple and value:
        value = value[0]
    if isinstance(value, msgpack.ExtType):
        if value.code != _EVENT_TIME or len(value.data) != _EVENT.size:
            return None
        seconds, nanoseconds = _EVENT.unpack(value.data)
        return int(seconds) * json_records.NS_PER_S + int(nanoseconds)
    return json_records.from_any(value)


def _text(value: Any) -> bytes:
    return value if type(value) is bytes else msgspec.json.encode(_plain(value, _DEPTH_MAX))


def _plain(value: Any, depth: int) -> Any:
    """Converts a value to what JSON has for it."""
    if depth == 0:
        raise ProtocolError(f"a record of a Fluent message is nested deeper than {_DEPTH_MAX}")
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if isinstance(value, list):
        return {_text(key).decode(errors="replace"): _plain(each, depth - 1) for key, each in value}
    if isinstance(value, msgpack.ExtType):
        return base64.b64encode(value.data).decode()
    if isinstance(value, msgpack.Timestamp):
        return value.to_unix_nano()
    if isinstance(value, tuple):
        return [_plain(each, depth - 1) for each in value]
    return value


SERVER_NAME: Final = b"raftwood"
_NONCE_BYTES: Final = 16


class FluentHandshake:
    """One connection's handshake: send `helo`, pass the answer to `received`, send its result."""

    def __init__(self, shared_key: Secret, random_source: random.Random) -> None:
        self._shared_key = shared_key.reveal().encode()
        self._nonce = random_source.randbytes(_NONCE_BYTES)

    def helo(self) -> bytes:
        options = {"nonce": self._nonce, "auth": "", "keepalive": True}
        return bytes(msgpack.packb(["HELO", options]))

    def received(self, ping: Any) -> bytes:
        """Returns PONG for a peer that knows the key, else raises `Unauthenticated`."""
        if not (
            type(ping) is tuple
            and len(ping) == 6
            and ping[0] == b"PING"
            and all(type(each) is bytes for each in ping[1:4])
        ):
            raise ProtocolError("a Fluent peer did not answer HELO with PING: give it a shared key")
        _, name, salt, digest = ping[:4]
        if not hmac.compare_digest(digest, self._digest(salt, name)):
            raise Unauthenticated(
                "a Fluent peer has another shared key: give it ways_in.fluent_shared_key"
            )
        own = self._digest(salt, SERVER_NAME)
        return bytes(msgpack.packb(["PONG", True, "", SERVER_NAME.decode(), own.decode()]))

    def refusal(self) -> bytes:
        """Returns PONG for a peer that does not know the key."""
        return bytes(msgpack.packb(["PONG", False, "shared_key mismatch", "", ""]))

    def _digest(self, salt: bytes, name: bytes) -> bytes:
        parts = b"".join((salt, name, self._nonce, self._shared_key))
        return hashlib.sha512(parts).hexdigest().encode()


_log = get_logger("ways_in")
HANDSHAKE_BYTES_MAX: Final = 4 << 10
CHUNK_RECORDS_MAX: Final = 1_000_000
"""A refused chunk is sent again and again, so this is more than any real one has."""


class FluentServer(SocketServer):
    """Peers need an address in `ways_in.fluent_peers`, or else the shared key if there is one, or
    else a certificate. Peers of `fluent_peers` do no handshake.
    """

    way = "fluent"

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
            place=LogstoreName(settings.fluent_project, settings.fluent_logstore),
            peers=AllowedNetworks(settings.fluent_peers),
            metrics=metrics,
            connections=connections,
        )

    async def start(self, *, tls: ServerTls | None = None) -> None:
        """Listens on the addresses of the settings."""
        settings = self.settings
        if settings.fluent_listen:
            await self.listen(settings.fluent_listen)
        if settings.fluent_tls_listen:
            await self.listen(settings.fluent_tls_listen, tls=tls)

    def lets_in(self, host: str, *, has_certificate: bool) -> bool:
        has_key = bool(self.settings.fluent_shared_key)
        return has_key or super().lets_in(host, has_certificate=has_certificate)

    async def serve(self, connection: SocketConnection) -> None:
        messages = MessageReader(bytes_max=HANDSHAKE_BYTES_MAX)
        waiting: list[bytes] | None = []
        if self.settings.fluent_shared_key and connection.host not in self.peers:
            waiting = await self._shake_hands(connection, messages)
            if waiting is None:
                return
        messages.bytes_max = self.settings.fluent_message_bytes_max
        while True:
            if waiting:
                connection.authenticated()
                connection.hold(messages.held_bytes + sum(map(len, waiting)))
                await self._take(connection, waiting)
            connection.hold(messages.held_bytes)
            if not (data := await connection.read()):
                return
            waiting = await self._fed(messages, data)

    async def _fed(self, messages: MessageReader, data: bytes) -> list[bytes]:
        """Returns the messages that are whole now; other tasks run between two slices of them."""
        found: list[bytes] = []
        for number, part in enumerate(messages.feed_in_slices(data)):
            if number:
                await self.turns.pause()
            found += part
        return found

    async def _shake_hands(
        self, connection: SocketConnection, messages: MessageReader
    ) -> list[bytes] | None:
        """Returns the messages that followed the handshake at once; None if the peer closed without
        a message, as Fluentd does all the time to check that the server is there.
        """
        handshake = FluentHandshake(self.settings.fluent_shared_key, self.environment.random)
        found: list[bytes] = []
        deadline = asyncio.get_running_loop().call_later(HANDSHAKE_S_MAX, connection.abort)
        try:
            await connection.write(handshake.helo())
            while not found:
                if not (data := await connection.read()):
                    if not messages.held_bytes:
                        return None
                    raise ProtocolError("a Fluent peer ended during the handshake")
                found = await self._fed(messages, data)
        finally:
            deadline.cancel()
        try:
            await connection.write(handshake.received(unpacked(found[0])))
        except Unauthenticated:
            await connection.write(handshake.refusal())
            raise
        connection.authenticated()
        return found[1:]

    async def _take(self, connection: SocketConnection, messages: list[bytes]) -> None:
        now_ns = self.putting.now_ns()
        bytes_max = self.settings.fluent_message_bytes_max
        slices = Slices(self.turns)
        sections: list[RecordSection] = []
        chunks: list[bytes] = []
        try:
            for message in messages:
                await slices.wait(message)
                found = decode_message(
                    message,
                    received_ns=now_ns,
                    bytes_max=bytes_max,
                    bounds=self.settings.bounds,
                )
                sections += await gathered(
                    found.sections, self.putting.turns, records_max=CHUNK_RECORDS_MAX
                )
                if found.too_large:
                    self.dropped.inc(found.too_large)
                    _log.warning("events too large", peer=connection.host, count=found.too_large)
                if found.chunk is not None:
                    chunks.append(found.chunk)
        except RaftwoodError:
            # Messages before the invalid one are kept.
            await self._put(connection, sections, chunks)
            raise
        await self._put(connection, sections, chunks)

    async def _put(
        self, connection: SocketConnection, sections: list[RecordSection], chunks: list[bytes]
    ) -> None:
        await connection.put(sections)
        # As texts, like the chunk's name in the request.
        acks = [msgpack.packb({b"ack": chunk}, use_bin_type=False) for chunk in chunks]
        if acks:
            await connection.write(b"".join(acks))
