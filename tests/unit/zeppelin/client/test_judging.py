"""What refusals mean, and who has which slots."""

import pytest

from raftwood.base.errors import (
    InvalidInput,
    PermissionDenied,
    ProtocolError,
    TooLarge,
    Unauthenticated,
)
from raftwood.zeppelin.client.errors import (
    AnswerLost,
    CommandRefused,
    ConnectionEnded,
    Moved,
    NotSent,
    RetryLater,
    judged,
)
from raftwood.zeppelin.client.nodes import SlotMap, addresses_of
from raftwood.zeppelin.resp import ErrorAnswer, Word, as_bytes
from raftwood.zeppelin.slots import SLOTS


def test_who_is_sent_elsewhere_goes_there() -> None:
    assert judged(ErrorAnswer("MOVED 12 h:5")) == Moved(12, "h:5")
    assert judged(ErrorAnswer("MOVED 12 [::1]:5")) == Moved(12, "[::1]:5")


@pytest.mark.parametrize("text", ["MOVED", "MOVED x h:5", "MOVED 1 nowhere", "MOVED 99999 h:5"])
def test_a_move_that_leads_nowhere_is_a_refusal(text: str) -> None:
    assert isinstance(judged(ErrorAnswer(text)), CommandRefused)


def test_what_passes_is_waited_for() -> None:
    assert judged(ErrorAnswer("TRYAGAIN soon")) == RetryLater("TRYAGAIN soon")
    assert judged(ErrorAnswer("CLUSTERDOWN x")) == RetryLater("CLUSTERDOWN x")
    assert judged(NotSent("nobody there")) == RetryLater("nobody there")
    assert judged(ErrorAnswer("NOREPLICAS x")) == RetryLater("NOREPLICAS x", may_be_done=True)
    assert judged(ConnectionEnded("ended")) == RetryLater("ended", may_be_done=True)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("DONE before", AnswerLost),
        ("WRONGPASS no", Unauthenticated),
        ("NOAUTH no", Unauthenticated),
        ("NOPERM no", PermissionDenied),
        ("TOOLARGE values", TooLarge),
        ("ERR syntax error", CommandRefused),
        ("CROSSSLOT Keys", CommandRefused),
    ],
)
def test_all_else_is_an_error(text: str, kind: type[Exception]) -> None:
    assert type(judged(ErrorAnswer(text))) is kind


def _slots(*ranges: tuple[int, int, list[tuple[bytes, int]]]) -> list[object]:
    return [
        [first, last, *([host, port, b"id", []] for host, port in nodes)]
        for first, last, nodes in ranges
    ]


def test_slots_have_masters_and_replicas() -> None:
    told = _slots((0, 8191, [(b"h", 1), (b"i", 2)]), (8192, 16383, [(b"::1", 3)]))
    found = SlotMap.decoded(told, epoch=7)
    assert (found.masters[0], found.masters[8192], found.only) == ("h:1", "[::1]:3", None)
    assert (found.replicas[8191], found.replicas[8192]) == (("i:2",), ())
    assert found.addresses == ["h:1", "i:2", "[::1]:3"]
    assert found.distinct_masters == ["h:1", "[::1]:3"]
    found.moved(0, "k:9")
    assert (found.masters[0], found.masters[1]) == ("k:9", "h:1")
    assert "k:9" in found.addresses


def test_one_master_of_all_is_known_as_such() -> None:
    found = SlotMap.decoded(_slots((0, SLOTS - 1, [(b"h", 1)])), epoch=1)
    assert found.only == "h:1"
    found.moved(5, "i:2")
    assert (found.masters[5], found.told[5], found.only) == ("i:2", "h:1", "h:1")


@pytest.mark.parametrize(
    "told",
    [
        None,
        [[1, 2]],
        [[0, SLOTS, [b"h", 1]]],
        [[5, 4, [b"h", 1]]],
        [[0, 1, [b"", 1]]],
        [[0, 1, [b"h"]]],
    ],
)
def test_a_map_that_is_none_is_refused(told: object) -> None:
    with pytest.raises(ProtocolError):
        SlotMap.decoded(told, epoch=1)


def test_words_are_bytes_texts_and_numbers() -> None:
    words: list[Word] = [b"a", "ä", 5, 1.5, bytearray(b"b"), memoryview(b"c")]
    assert [as_bytes(word) for word in words] == [b"a", "ä".encode(), b"5", b"1.5", b"b", b"c"]
    for wrong in (None, True, [1]):
        with pytest.raises(InvalidInput):
            as_bytes(wrong)  # type: ignore[arg-type]


def test_addresses_are_some_hosts_and_ports() -> None:
    assert addresses_of("a:1, b:2,") == ("a:1", "b:2")
    for wrong in ("", "a", "a:b", ",", "a:1," * 65):
        with pytest.raises(InvalidInput):
            addresses_of(wrong)
