"""Blocks become lines: whole ones, long ones, ends of lines, records of several lines."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from raftwood.clogs.tail.batch_maker import Forced, LineSplitter
from raftwood.clogs.tail.settings import Multiline, TailSettings


def _cutter(**changes: object) -> LineSplitter:
    settings = {"paths": ("/a",), "line_bytes_max": 64, "batch_bytes_max": 4096} | changes
    return LineSplitter(TailSettings(**settings))  # type: ignore[arg-type]


def _shipped(cutter: LineSplitter, data: bytes, sizes: list[int]) -> list[bytes]:
    """All lines of a file that is read in blocks of some sizes, and then is at its end."""
    lines: list[bytes] = []
    at, is_mid_line = 0, False
    for size in [*sizes, *([4096] * (len(data) + 1))]:
        block = data[at : at + size]
        is_end = at + len(block) == len(data) and size == 4096
        taken = cutter.taken(block, Forced.ALL if is_end else Forced.NOTHING)
        if taken:
            more, _ = cutter.lines(block[:taken], is_mid_line=is_mid_line)
            lines += more
            is_mid_line = not block[:taken].endswith(b"\n")
            at += taken
        if at == len(data):
            break
    assert at == len(data)
    return lines


@given(
    lines=st.lists(st.binary(max_size=60).map(lambda line: line.replace(b"\n", b" "))),
    sizes=st.lists(st.integers(1, 200), max_size=20),
    has_end=st.booleans(),
)
def test_lines_are_the_same_in_whatever_blocks_they_are_read(
    lines: list[bytes], sizes: list[int], has_end: bool
) -> None:
    lines = [line.rstrip(b"\r") for line in lines]
    data = b"\n".join(lines) + (b"\n" if has_end and lines else b"")
    expected = lines if has_end or (lines and lines[-1]) else lines[:-1]
    assert _shipped(_cutter(), data, sizes) == expected


@given(
    lines=st.lists(st.text(max_size=150).map(lambda line: line.replace("\n", " "))),
    sizes=st.lists(st.integers(64, 400), max_size=20),
)
def test_long_lines_are_cut_into_pieces_and_nothing_of_them_is_lost(
    lines: list[str], sizes: list[int]
) -> None:
    data = "".join(line + "\n" for line in lines).encode().replace(b"\r\n", b"\n")
    shipped = _shipped(_cutter(), data, sizes)
    assert b"".join(shipped) == data.replace(b"\n", b"")
    assert all(len(line) <= 64 for line in shipped)


def test_a_long_line_is_cut_before_a_character_and_counted() -> None:
    line = ("x" * 63 + "ü" * 40).encode()
    lines, cuts = _cutter().lines(line + b"\nshort\n")
    assert lines == [b"x" * 63, ("ü" * 32).encode(), ("ü" * 8).encode(), b"short"]
    assert cuts == 2


def test_what_is_no_text_is_cut_all_the_same() -> None:
    lines, cuts = _cutter().lines(b"\x80" * 100 + b"\n")
    assert ([len(line) for line in lines], cuts) == ([64, 36], 1)


def test_a_line_without_its_newline_waits_until_it_is_forced() -> None:
    cutter = _cutter()
    assert cutter.taken(b"one\ntw", Forced.NOTHING) == 4
    assert cutter.taken(b"tw", Forced.NOTHING) == 0
    assert cutter.taken(b"tw", Forced.LINES) == 0
    assert cutter.taken(b"one\ntw", Forced.ALL) == 6


def test_the_rest_of_a_line_that_was_shipped_is_no_empty_line() -> None:
    cutter = _cutter()
    assert cutter.lines(b"\nnext\n", is_mid_line=True) == ([b"next"], 0)
    assert cutter.lines(b"\r\nnext\n", is_mid_line=True) == ([b"next"], 0)
    assert cutter.lines(b"rest\nnext\n", is_mid_line=True) == ([b"rest", b"next"], 0)
    assert cutter.lines(b"\nnext\n", is_mid_line=False) == ([b"", b"next"], 0)
    assert cutter.lines(b"\n", is_mid_line=True) == ([], 0)


def test_ends_of_lines_zero_bytes_and_bad_characters_pass() -> None:
    block = b"a\r\nb\rc\n\x00\n\xff\xfe\n\n"
    assert _cutter().lines(block) == ([b"a", b"b\rc", b"\x00", b"\xff\xfe", b""], 0)


@given(st.lists(st.binary(max_size=8).map(lambda line: line.replace(b"\n", b"")), max_size=200))
def test_a_batch_has_no_more_lines_than_it_may(lines: list[bytes]) -> None:
    cutter = _cutter(batch_lines_max=7)
    data = b"".join(line + b"\n" for line in lines)
    at = 0
    while at < len(data):
        taken = cutter.taken(data[at:], Forced.ALL)
        assert 0 < data.count(b"\n", at, at + taken) <= 7
        at += taken


START = Multiline(start=r"^\d{4}-")
CONTINUE = Multiline(continues=r"^(\s|Caused by)", lines_max=3)


@pytest.mark.parametrize("multiline", [START, Multiline(continues=r"^[^\d]")])
def test_lines_of_one_record_stay_together(multiline: Multiline) -> None:
    cutter = _cutter(multiline=multiline)
    block = b"2026-01 one\n at a\n at b\n2026-02 two\n2026-03 three\n at c\n"
    taken = cutter.taken(block, Forced.NOTHING)
    assert block[taken:] == b"2026-03 three\n at c\n", "the last record may go on"
    assert cutter.lines(block[:taken]) == ([b"2026-01 one\n at a\n at b", b"2026-02 two"], 0)
    assert cutter.taken(block[taken:], Forced.NOTHING) == 0
    assert cutter.taken(block[taken:] + b" at", Forced.LINES) == len(block) - taken
    assert cutter.taken(block[taken:] + b" at", Forced.ALL) == len(block) - taken + 3


def test_a_record_has_a_bound_on_lines_and_on_bytes() -> None:
    cutter = _cutter(multiline=CONTINUE)
    block = b"a\n 1\n 2\n 3\n 4\n"
    assert cutter.taken(block, Forced.NOTHING) == len(block)
    assert cutter.lines(block) == ([b"a\n 1\n 2", b" 3\n 4"], 1)
    long = b"b" * 40 + b"\n " + b"c" * 40 + b"\n"
    assert cutter.taken(long, Forced.NOTHING) == len(long)
    lines, cuts = cutter.lines(long)
    assert (b"".join(lines), cuts) == (long[:-1], 1)


@given(
    records=st.lists(st.lists(st.sampled_from([b"x", b"", b"yy"]), max_size=4), max_size=12),
    sizes=st.lists(st.integers(20, 80), max_size=12),
)
def test_records_are_the_same_in_whatever_blocks_they_are_read(
    records: list[list[bytes]], sizes: list[int]
) -> None:
    whole = [
        b"\n".join([b"2026-%d" % number, *(b" " + line for line in lines)])
        for number, lines in enumerate(records)
    ]
    data = b"".join(record + b"\n" for record in whole)
    assert _shipped(_cutter(multiline=START), data, sizes) == whole


def test_a_line_longer_than_a_block_within_a_record_holds_nobody_up() -> None:
    cutter = _cutter(multiline=START)
    data = b"2026-01 dump:\n" + b"x" * 10_000 + b"\n2026-02 two\n"
    shipped = _shipped(cutter, data, [])
    assert shipped[0] == b"2026-01 dump:"
    assert b"".join(shipped[1:-1]) == b"x" * 10_000
    assert shipped[-1] == b"2026-02 two"
