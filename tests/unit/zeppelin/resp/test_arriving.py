"""Answers as they arrive: in pieces, nested, in both versions, and broken."""

import random
from typing import Any

import pytest

from raftwood.base.errors import ProtocolError
from raftwood.zeppelin.resp import (
    RESP2,
    RESP3,
    Answers,
    ErrorAnswer,
    array,
    bulk,
    bulks,
    error,
    integer,
    simple,
)

SEEN: list[tuple[bytes, Any]] = [
    (b"+OK\r\n", "OK"),
    (simple("QUEUED"), "QUEUED"),
    (integer(-5), -5),
    (bulk(b""), b""),
    (bulk(b"value"), b"value"),
    (bulk(b"a\r\n$3\r\nb"), b"a\r\n$3\r\nb"),
    (RESP2.null, None),
    (RESP3.null, None),
    (RESP2.null_array, None),
    (error("MOVED 12 127.0.0.1:5"), ErrorAnswer("MOVED 12 127.0.0.1:5")),
    (bulks([b"a", b"", b"b"]), [b"a", b"", b"b"]),
    (bulks([b"a", b"\r\n"]), [b"a", b"\r\n"]),
    (array([bulk(b"a"), RESP3.null, bulk(b"b"), RESP3.null]), [b"a", None, b"b", None]),
    (array([]), []),
    (array([integer(1), array([bulk(b"x"), array([])])]), [1, [b"x", []]]),
    (RESP3.map([(bulk(b"a"), integer(1)), (bulk(b"b"), array([]))]), {b"a": 1, b"b": []}),
    (RESP3.map([]), {}),
    (RESP3.set([simple("a")]), ["a"]),
    (RESP3.lines("text\r\nof lines"), b"text\r\nof lines"),
    (b"#t\r\n", True),
    (b",1.5\r\n", 1.5),
]


@pytest.mark.parametrize("seed", range(40))
def test_answers_are_read_however_they_are_cut(seed: int) -> None:
    chance = random.Random(seed)
    chosen = chance.choices(SEEN, k=60)
    data = b"".join(encoded for encoded, _ in chosen)
    reading, found = Answers(), []
    at = 0
    while at < len(data):
        piece = chance.choice((1, 3, 20, 200, 5_000))
        found += reading.feed(data[at : at + piece])
        at += piece
    assert found == [answer for _, answer in chosen]


def test_what_has_come_is_answered_before_the_rest() -> None:
    reading = Answers()
    assert reading.feed(b":1\r\n*2\r\n$1\r\na\r\n$1") == [1]
    assert reading.feed(b"\r\nb\r\n:2\r\n") == [[b"a", b"b"], 2]


def test_a_long_answer_in_pieces_is_not_read_again_from_its_beginning() -> None:
    data = bulks([b"x" * 100] * 20_000)
    reading = Answers()
    found = [each for at in range(0, len(data), 997) for each in reading.feed(data[at : at + 997])]
    assert found == [[b"x" * 100] * 20_000]


@pytest.mark.parametrize(
    "data",
    [
        b"nonsense\r\n",
        b":1x\r\n",
        b"$-\r\n",
        b"$999999999999\r\n",
        b"*99999999\r\n",
        b"*1\r\n" * 20,
        b"+" + b"a" * 100_000,
        b",x\r\n",
        b"%1\r\n*0\r\n:1\r\n",
    ],
)
def test_a_server_that_breaks_the_protocol_is_noticed(data: bytes) -> None:
    with pytest.raises(ProtocolError):
        Answers().feed(data)


def test_a_refusal_says_its_kind() -> None:
    refusal = ErrorAnswer("TRYAGAIN later")
    assert (refusal.kind, repr(refusal)) == ("TRYAGAIN", "ErrorAnswer('TRYAGAIN later')")
    assert refusal != "TRYAGAIN later"
    assert len({refusal, ErrorAnswer("TRYAGAIN later")}) == 1
