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
_LETTERS: Final = " 0123456789:,.-/%ABCDEFGHIJKLMNOPQRSTUVWXYZ"
_DOTS: Final = bytes.fromhex(
    "00000000003e5149453e00427f400042615149462141454b311814127f1027454545393c4a494930"
    "01710905033649494936064949291e00363600000050300000006060000008080808082010080402"
    "23130864627e1111117e7f494949363e414141227f4141221c7f494949417f090909013e4149497a"
    "7f0808087f00417f41002040413f017f081422417f404040407f020c027f7f0408107f3e4141413e"
    "7f090909063e4151215e7f09192946464949493101017f01013f4040403f1f2040201f3f4038403f"
    "631408146307087008076151494543"
)
"""Five columns of seven dots for each letter, the lowest bit on top."""
_GLYPHS: Final = {letter: _DOTS[place * 5 : place * 5 + 5] for place, letter in enumerate(_LETTERS)}


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
