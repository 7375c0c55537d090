"""The fuzz targets hold on their seeds and on some thousand mutations of them."""

import random
from collections.abc import Callable

import pytest
from tests.kits.fuzz import frames


@pytest.mark.parametrize(
    ("target", "seeds"),
    [
        (frames.target, frames.seeds),
        (frames.hello_target, frames.hello_seeds),
        (frames.error_target, frames.error_seeds),
    ],
)
def test_mutated_inputs_raise_nothing_unexpected(
    target: Callable[[bytes], None], seeds: Callable[[], list[bytes]]
) -> None:
    source = random.Random(11)
    inputs = seeds()
    for seed in inputs:
        target(seed)
    for _ in range(5_000):
        data = bytearray(source.choice(inputs))
        for _ in range(source.randrange(1, 4)):
            position = source.randrange(len(data))
            match source.randrange(4):
                case 0:
                    data[position] = source.randrange(256)
                case 1:
                    del data[position:]
                case 2:
                    data[position:position] = source.randbytes(source.randrange(9))
                case _:
                    data += source.choice(inputs)
            if not data:
                break
        target(bytes(data))
