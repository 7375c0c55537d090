"""Syslog: frames out of a stream (RFC 6587), and messages of RFC 5424 to records.

A frame is counted (`LENGTH MESSAGE`) where it begins with a digit, else it ends with its line. What
is no RFC 5424 is kept nevertheless: its priority where it has one, and all else as `message`.
"""

import re
from collections.abc import Iterator
from typing import Final

from raftwood.base.errors import ProtocolError
from raftwood.loghub.server.ways_in import times
from raftwood.loghub.server.ways_in.records import encode_record

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
    """Frames of a stream that comes in pieces."""

    def __init__(self, *, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """The frames that are whole now; `ProtocolError` where there can be none any more."""
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
        """The line that the stream ended with, where it was not counted."""
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
    """Any bytes are a record."""
    contents: list[tuple[bytes, bytes]] = []
    time_ns = None
    rest = frame
    if (priority := _PRIORITY.match(frame)) and int(priority[1]) < 8 * len(_FACILITIES):
        facility, severity = divmod(int(priority[1]), 8)
        contents += ((b"facility", _FACILITIES[facility]), (b"severity", _SEVERITIES[severity]))
        rest = frame[priority.end() :]
        if (head := _HEAD.match(rest)) and (found := _structured(rest, head.end())):
            time, *names = head.groups()
            time_ns = times.from_rfc3339(time.decode("ascii", "replace"))
            contents += (
                (name, value) for name, value in zip(_NAMES, names, strict=True) if value != b"-"
            )
            parameters, at = found
            contents += parameters
            rest = rest[at + 1 :].removeprefix(_BYTE_ORDER_MARK)
    contents.append((b"message", rest))
    return encode_record(times.sensible(time_ns, received_ns), contents)


def _structured(text: bytes, at: int) -> tuple[list[tuple[bytes, bytes]], int] | None:
    """The parameters as `ID.NAME`, and where they end; None for what is no structured data."""
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
