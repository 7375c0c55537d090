"""A fuzzer: a fast seeded mutator, and `fuzz`, which feeds a target the mutated inputs.

A target takes bytes and either returns or raises one of the errors it may raise; anything else is a
finding, reported with the input as hex and the command that repeats it.
"""

import random
from collections.abc import Callable, Iterator, Sequence

import msgspec

_INTERESTING = (0, 1, 0x7F, 0x80, 0xFF, 0x7FFF, 0x8000, 0xFFFF, 0x7FFFFFFF, 0x80000000, 0xFFFFFFFF)
_INTERESTING_BYTES = tuple(
    dict.fromkeys(
        value.to_bytes(size, order)
        for size in (1, 2, 4, 8)
        for value in _INTERESTING
        if value < 1 << (8 * size)
        for order in ("big", "little")
    )
)
_REMEMBERED_MAX = 1_000_000


class Mutator:
    """Yields endless changed copies of the seed inputs."""

    def __init__(self, seeds: Sequence[bytes], *, seed: int, bytes_max: int = 65_536) -> None:
        if not seeds:
            raise ValueError("at least one seed input is needed")
        self._seeds = [bytes(each) for each in seeds]
        self._bytes_max = bytes_max
        self._random = random.Random(f"mutator {seed}")
        self._kinds: tuple[Callable[[bytearray, Callable[[], float]], None], ...] = (
            _flip_bit, _flip_bit, _set_byte, _set_byte, _cut_end, _cut_middle, _duplicate,
            self._splice, _interesting, _interesting, _nudge_length, _insert,
        )  # fmt: skip

    def __iter__(self) -> Iterator[bytes]:
        draw = self._random.random
        seeds, kinds, bytes_max = self._seeds, self._kinds, self._bytes_max
        seed_count, kind_count = len(seeds), len(kinds)
        while True:
            data = bytearray(seeds[int(draw() * seed_count)])
            kinds[int(draw() * kind_count)](data, draw)
            # Most findings need one change, some a few.
            while draw() < 0.35:
                kinds[int(draw() * kind_count)](data, draw)
            if len(data) > bytes_max:
                del data[bytes_max:]
            yield bytes(data)

    def _splice(self, data: bytearray, draw: Callable[[], float]) -> None:
        """Joins the beginning of this input to the end of another."""
        other = self._seeds[int(draw() * len(self._seeds))]
        data[int(draw() * (len(data) + 1)) :] = other[int(draw() * (len(other) + 1)) :]


def _flip_bit(data: bytearray, draw: Callable[[], float]) -> None:
    if data:
        data[int(draw() * len(data))] ^= 1 << int(draw() * 8)


def _set_byte(data: bytearray, draw: Callable[[], float]) -> None:
    if data:
        data[int(draw() * len(data))] = int(draw() * 256)


def _cut_end(data: bytearray, draw: Callable[[], float]) -> None:
    del data[int(draw() * (len(data) + 1)) :]


def _cut_middle(data: bytearray, draw: Callable[[], float]) -> None:
    start = int(draw() * (len(data) + 1))
    del data[start : start + 1 + int(draw() * 16)]


def _duplicate(data: bytearray, draw: Callable[[], float]) -> None:
    start = int(draw() * (len(data) + 1))
    part = data[start : start + 1 + int(draw() * 64)]
    data[start:start] = part * (1 + int(draw() * 3))


def _interesting(data: bytearray, draw: Callable[[], float]) -> None:
    value = _INTERESTING_BYTES[int(draw() * len(_INTERESTING_BYTES))]
    start = int(draw() * (len(data) + 1))
    data[start : start + len(value)] = value


def _nudge_length(data: bytearray, draw: Callable[[], float]) -> None:
    """Changes a possible length by a little, or to the real one."""
    size = (1, 2, 4, 8)[int(draw() * 4)]
    if len(data) < size:
        return
    start = int(draw() * (len(data) - size + 1))
    order = "big" if draw() < 0.5 else "little"
    if draw() < 0.7:
        value = int.from_bytes(data[start : start + size], order) + int(draw() * 17) - 8  # type: ignore[arg-type]
    else:
        value = len(data) - start - size
    data[start : start + size] = (value & ((1 << (8 * size)) - 1)).to_bytes(size, order)  # type: ignore[arg-type]


def _insert(data: bytearray, draw: Callable[[], float]) -> None:
    start = int(draw() * (len(data) + 1))
    data[start:start] = bytes([int(draw() * 256)]) * (1 + int(draw() * 8))


class FuzzFinding(AssertionError):
    """The target raised an error that it may not raise."""


class FuzzReport(msgspec.Struct):
    """The numbers of inputs, of different inputs, and of accepted ones."""

    inputs: int
    tried: int
    """Inputs that were tried; repeated inputs are not tried again."""
    accepted: int


def fuzz(
    target: Callable[[bytes], object],
    seeds: Sequence[bytes],
    *,
    count: int,
    seed: int,
    allowed: tuple[type[BaseException], ...] = (),
    first: int = 0,
) -> FuzzReport:
    """Feeds `count` inputs; `allowed` are the errors that a bad input may cause.

    A target answers the same to the same input, so each is tried once: half of the inputs made from
    a short seed are repetitions. With `first`, inputs below that number are made but not tried: to
    repeat a finding.
    """
    tried = accepted = 0
    taken: dict[int, bool] = {}
    """Whether each input was accepted, by its hash."""
    inputs = iter(Mutator(seeds, seed=seed))
    for _ in range(first):
        next(inputs)
    data = b""
    for number, data in zip(range(first, first + count), inputs, strict=False):
        key = hash(data)
        is_taken = taken.get(key)
        if is_taken is None:
            tried += 1
            try:
                target(data)
                is_taken = True
            except allowed:
                is_taken = False
            except Exception as error:
                raise FuzzFinding(
                    f"{type(error).__name__}: {error} at seed {seed}, iteration {number},"
                    f" input {data.hex()}"
                ) from error
            if len(taken) >= _REMEMBERED_MAX:
                taken.clear()
            taken[key] = is_taken
        accepted += is_taken
    return FuzzReport(inputs=count, tried=tried, accepted=accepted)
