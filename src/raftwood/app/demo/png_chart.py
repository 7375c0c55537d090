"""A small picture of figures by the minute: bars, a second row of bars, and words; no library."""

import struct
import zlib
from collections.abc import Sequence
from typing import Final

import msgspec

_WIDTH: Final = 960
_HEIGHT: Final = 420
_LEFT: Final = 90
_RIGHT: Final = 20
_WHITE: Final = (255, 255, 255)
_INK: Final = (60, 64, 72)
_GRID: Final = (226, 229, 234)
_SCALE: Final = 2
_GLYPHS: Final = {
    letter: bytes.fromhex(columns)
    for letter, columns in zip(
        " 0123456789:,.-/%ABCDEFGHIJKLMNOPQRSTUVWXYZ",
        "0000000000 3e5149453e 00427f4000 4261514946 2141454b31 1814127f10 2745454539 3c4a494930 "
        "0171090503 3649494936 064949291e 0036360000 0050300000 0060600000 0808080808 2010080402 "
        "2313086462 7e1111117e 7f49494936 3e41414122 7f4141221c 7f49494941 7f09090901 3e4149497a "
        "7f0808087f 00417f4100 2040413f01 7f08142241 7f40404040 7f020c027f 7f0408107f 3e4141413e "
        "7f09090906 3e4151215e 7f09192946 4649494931 01017f0101 3f4040403f 1f2040201f 3f4038403f "
        "6314081463 0708700807 6151494543".split(),
        strict=True,
    )
}
"""Five columns of seven dots each, the lowest bit on top."""


class Series(msgspec.Struct, frozen=True):
    """Bars of one colour."""

    title: str
    values: Sequence[float]
    color: tuple[int, int, int]


class _Canvas:
    def __init__(self, width: int, height: int) -> None:
        self.width, self.height = width, height
        self._rows = [bytearray(bytes(_WHITE) * width) for _ in range(height)]

    def fill(self, x: int, y: int, width: int, height: int, color: tuple[int, int, int]) -> None:
        x, right = max(0, x), min(self.width, x + width)
        for row in self._rows[max(0, y) : max(0, y + height)]:
            row[x * 3 : right * 3] = bytes(color) * max(0, right - x)

    def write(self, x: int, y: int, text: str) -> None:
        for letter in text.upper():
            for place, column in enumerate(_GLYPHS.get(letter, _GLYPHS[" "])):
                for row in range(7):
                    if column >> row & 1:
                        left, top = x + place * _SCALE, y + row * _SCALE
                        self.fill(left, top, _SCALE, _SCALE, _INK)
            x += 6 * _SCALE

    def png(self) -> bytes:
        pixels = b"".join(b"\0" + row for row in self._rows)
        head = struct.pack(">IIBBBBB", self.width, self.height, 8, 2, 0, 0, 0)
        chunks = ((b"IHDR", head), (b"IDAT", zlib.compress(pixels, 9)), (b"IEND", b""))
        return b"\x89PNG\r\n\x1a\n" + b"".join(
            struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
            for kind, data in chunks
        )


def bar_chart(labels: Sequence[str], rows: Sequence[Series]) -> bytes:
    """A PNG: the rows below one another, over the same labels."""
    canvas = _Canvas(_WIDTH, _HEIGHT)
    height = (_HEIGHT - 40) // len(rows)
    for place, series in enumerate(rows):
        _draw(canvas, series, top=place * height, height=height)
    step = max(1, -(-len(labels) * 80 // (_WIDTH - _LEFT - _RIGHT)))
    for place in range(0, len(labels), step):
        canvas.write(_left(place, len(labels)), _HEIGHT - 28, labels[place])
    return canvas.png()


def _left(place: int, count: int) -> int:
    return _LEFT + (_WIDTH - _LEFT - _RIGHT) * place // max(1, count)


def _draw(canvas: _Canvas, series: Series, *, top: int, height: int) -> None:
    canvas.write(_LEFT, top + 10, series.title)
    floor, room = top + height - 8, height - 44
    highest = max(series.values, default=0) or 1
    for part in (0, 0.5, 1):
        y = floor - int(room * part)
        canvas.fill(_LEFT, y, _WIDTH - _LEFT - _RIGHT, 1, _GRID)
        text = f"{highest * part:,.0f}"
        canvas.write(_LEFT - 10 - len(text) * 6 * _SCALE, y - 7, text)
    for place, value in enumerate(series.values):
        left = _left(place, len(series.values))
        width = max(1, _left(place + 1, len(series.values)) - left - 3)
        bar = round(room * value / highest)
        canvas.fill(left, floor - bar, width, bar, series.color)
