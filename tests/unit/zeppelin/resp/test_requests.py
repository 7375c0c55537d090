"""Requests out of bytes: the same however they arrive, and refused in Redis's words."""

import random

import pytest

from raftwood.zeppelin import resp as module
from raftwood.zeppelin.resp import BEFORE_LOGIN, RequestLimits, Requests, split_line

LIMITS = RequestLimits()


def encoded(*words: bytes) -> bytes:
    return b"*%d\r\n" % len(words) + b"".join(b"$%d\r\n%b\r\n" % (len(w), w) for w in words)


def read(*pieces: bytes, limits: RequestLimits = LIMITS) -> tuple[list[list[bytes]], str | None]:
    requests = Requests(limits)
    found = [request for piece in pieces for request in requests.feed(piece)]
    return found, requests.failure


REQUESTS = [
    [b"GET", b"key"],
    [b"SET", b"key", b"value"],
    [b"PING"],
    [b"SET", b"", b"\r\n"],
    [b"SET", b"key", b"*1\r\n$4\r\nPING\r\n"],
    [b"MSET", b"a", b"1", b"b", b"2\r\n"],
    [b"SET", b"large", b"x" * 3000],
    [b"MGET", *(b"%d" % number for number in range(1500))],
]


def test_requests_are_read_however_they_are_cut() -> None:
    data = b"".join(encoded(*words) for words in REQUESTS[:6])
    for place in range(1, len(data)):
        assert read(data[:place], data[place:]) == (REQUESTS[:6], None)
    assert read(*(data[at : at + 1] for at in range(len(data)))) == (REQUESTS[:6], None)


def test_random_requests_in_random_pieces_are_read() -> None:
    source = random.Random(1)
    for _ in range(300):
        words = source.choices(REQUESTS, k=source.randint(1, 8))
        data = b"".join(encoded(*each) for each in words)
        pieces = []
        while data:
            size = source.choice((1, 5, 30, 1000, 100_000))
            pieces.append(data[:size])
            data = data[size:]
        assert read(*pieces) == (words, None)


def test_nothing_in_an_array_is_no_request() -> None:
    assert read(b"*0\r\n" + encoded(b"PING") + b"*-1\r\n\r\n" + encoded(b"PING")) == (
        [[b"PING"], [b"PING"]],
        None,
    )


def test_lines_are_requests_too() -> None:
    assert read(b"PING\r\n", b"set a \"b\\x41\\n\" 'c\\'d'\nGET", b" a\r\n") == (
        [[b"PING"], [b"set", b"a", b"bA\n", b"c'd"], [b"GET", b"a"]],
        None,
    )
    assert split_line(b'a "b') is None
    assert split_line(b'a "b"c') is None


@pytest.mark.parametrize(
    ("data", "failure"),
    [
        (b"*x\r\n", "invalid multibulk length"),
        (b"*2000000\r\n", "invalid multibulk length"),
        (b"*01\r\n", "invalid multibulk length"),
        (b"*1\r\n+OK\r\n", "expected '$', got '+'"),
        (b"*1\r\n*1\r\n", "expected '$', got '*'"),
        (b"*1\r\n\xff", "expected '$', got '\\xff'"),
        (b"*1\r\n$-1\r\n", "invalid bulk length"),
        (b"*1\r\n$99999999\r\n", "invalid bulk length"),
        (b"*1\r\n$a\r\n", "invalid bulk length"),
        (b'GET "a\r\n', "unbalanced quotes in request"),
        (b"x" * 70_000, "too big inline request"),
        (b"*" + b"1" * 70_000, "too big mbulk count string"),
        (b"*1\r\n$" + b"1" * 70_000, "too big bulk count string"),
    ],
)
def test_what_is_wrong_is_told_in_the_words_of_redis(data: bytes, failure: str) -> None:
    good = encoded(b"PING")
    assert read(good + data + good) == ([[b"PING"]], f"Protocol error: {failure}")


def test_strangers_may_send_little() -> None:
    assert read(encoded(b"AUTH", b"user", b"password"), limits=BEFORE_LOGIN)[1] is None
    many = b"*11\r\n"
    assert read(many, limits=BEFORE_LOGIN)[1] == "Protocol error: unauthenticated multibulk length"
    large = b"*1\r\n$20000\r\n"
    assert read(large, limits=BEFORE_LOGIN)[1] == "Protocol error: unauthenticated bulk length"


def test_a_request_has_a_bound_as_a_whole() -> None:
    limits = RequestLimits(request_bytes_max=10_000)
    pieces = [b"*100\r\n"] + [b"$2000\r\n" + b"x" * 2000 + b"\r\n"] * 20
    assert read(*pieces, limits=limits) == ([], "Protocol error: too big request")


def test_both_ways_of_reading_agree(monkeypatch: pytest.MonkeyPatch) -> None:
    data = b"".join(encoded(*words) for words in REQUESTS) + b"PING\r\n" + encoded(b"GET", b"a")
    fast = read(data)
    monkeypatch.setattr(module, "_cut_requests", lambda _: ([], 0))
    assert fast == read(data) == ([*REQUESTS, [b"PING"], [b"GET", b"a"]], None)
