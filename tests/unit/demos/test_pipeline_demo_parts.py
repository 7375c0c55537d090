"""Parts of the pipeline's demo: what is known of lines, what is checked, and the picture."""

import struct
import zlib

import msgspec
import pytest

from raftwood.cli.demo_pipeline import _bars
from raftwood_demos.pipeline_check import Figures, MinuteRow, WebTruth, checks
from raftwood_demos.png_chart import Series, bar_chart
from raftwood_demos.web_logs import web_logs


def _truth() -> WebTruth:
    truth = WebTruth()
    for line in web_logs(2_000, seed=1, lines_per_minute=500):
        truth.add(line)
    return truth


def _agreeing(truth: WebTruth) -> tuple[Figures, list[MinuteRow]]:
    total = truth.total
    minutes = [
        MinuteRow(name, each.requests, each.errors, each.bytes, 1.0)
        for name, each in truth.minutes.items()
    ]
    figures = Figures(
        lines_stored=total.requests,
        parsed=total.requests,
        parsed_errors=total.errors,
        parsed_bytes=total.bytes,
        archived=1_500,
        tail=500,
        errors=total.errors,
        shards_truncated=2,
        shards=2,
    )
    return figures, minutes


def test_the_truth_counts_every_line_once_in_its_minute() -> None:
    truth = _truth()
    lines = list(web_logs(2_000, seed=1, lines_per_minute=500))
    assert truth.total.requests == 2_000
    assert truth.total.errors == sum('HTTP/1.1" 50' in line for line in lines)
    assert list(truth.minutes) == sorted(truth.minutes)
    first = lines[0].partition("[")[2][12:17]
    assert next(iter(truth.minutes))[11:16] == first


def test_all_checks_hold_where_all_figures_agree() -> None:
    truth = _truth()
    figures, minutes = _agreeing(truth)
    assert all(each.held for each in checks(truth, figures, minutes, minutes, archived_lines=1_500))


@pytest.mark.parametrize("name", [each.name for each in msgspec.structs.fields(Figures)])
def test_a_figure_that_is_off_by_one_breaks_a_check(name: str) -> None:
    truth = _truth()
    figures, minutes = _agreeing(truth)
    wrong = msgspec.structs.replace(figures, **{name: getattr(figures, name) + 1})
    assert not all(
        each.held for each in checks(truth, wrong, minutes, minutes, archived_lines=1_500)
    )


def test_a_minute_that_is_wrong_or_missing_breaks_a_check() -> None:
    truth = _truth()
    figures, minutes = _agreeing(truth)
    swapped = [
        msgspec.structs.replace(minutes[0], minute=minutes[1].minute),
        msgspec.structs.replace(minutes[1], minute=minutes[0].minute),
        *minutes[2:],
    ]
    for wrong in (minutes[1:], swapped):
        for found, kept in ((wrong, minutes), (minutes, wrong)):
            told = checks(truth, figures, found, kept, archived_lines=1_500)
            assert not all(each.held for each in told)


def test_the_picture_is_a_png_with_a_bar_as_high_as_its_value() -> None:
    red = (200, 72, 60)
    data = bar_chart(["10:00", "10:01"], [Series("errors", [0, 5], red)])
    pixels, width = _decoded(data)
    colored = [
        place for place in range(0, len(pixels), 3) if tuple(pixels[place : place + 3]) == red
    ]
    columns = {place // 3 % width for place in colored}
    assert colored
    assert min(columns) > width // 2  # the first bar has no height


def _decoded(data: bytes) -> tuple[bytes, int]:
    """The pixels of a PNG whose lines are stored as they are."""
    assert data.startswith(b"\x89PNG\r\n\x1a\n")
    place, chunks = 8, {}
    while place < len(data):
        (size,) = struct.unpack_from(">I", data, place)
        kind, body = data[place + 4 : place + 8], data[place + 8 : place + 8 + size]
        assert struct.unpack_from(">I", data, place + 8 + size) == (zlib.crc32(kind + body),)
        chunks[kind] = body
        place += size + 12
    width, height = struct.unpack_from(">II", chunks[b"IHDR"])
    raw = zlib.decompress(chunks[b"IDAT"])
    line = width * 3 + 1
    assert len(raw) == line * height
    return b"".join(raw[row * line + 1 : (row + 1) * line] for row in range(height)), width


def test_bars_in_the_terminal_are_as_long_as_their_values() -> None:
    assert _bars([0, 5, 10], 4) == ["", "██", "████"]
    assert _bars([1, 16], 2) == ["▏", "██"]
    assert _bars([], 4) == []
