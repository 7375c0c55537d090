"""Answers of Redis's servers, as a target for a mutator: all at once and in pieces, the same."""

from typing import Any

from raftwood.base.errors import ProtocolError
from raftwood.zeppelin.resp import RESP3, Answers, array, bulk, bulks, error, integer, simple


def _read(*pieces: bytes) -> tuple[str, bool]:
    """What was read, as text (a number may be no number), and whether it ended in an error."""
    reading = Answers()
    found: list[Any] = []
    for piece in pieces:
        try:
            found += reading.feed(piece)
        except ProtocolError:
            return "", True
    return repr(found), False


def target(data: bytes) -> None:
    middle = len(data) // 2
    assert _read(data) == _read(data[:middle], data[middle:])


def seeds() -> list[bytes]:
    return [
        simple("OK") + integer(-7) + bulk(b"a\r\nb") + RESP3.null + error("MOVED 1 a:5"),
        bulks([b"a", b"", b"\r\n"]) + array([integer(1), array([bulk(b"x")]), RESP3.null]),
        RESP3.map([(bulk(b"a"), array([]))]) + RESP3.lines("text") + b"#t\r\n,1.5\r\n*-1\r\n",
    ]
