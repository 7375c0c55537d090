"""Buffers of large frames, and who may still look at them."""

from raftwood.net.frames import SPARE_BYTES_MAX, SPARES_MAX, FrameBuffers


def test_a_buffer_is_used_again_once_nobody_views_it() -> None:
    buffers = FrameBuffers()
    first = buffers.take(100_000)
    assert 100_000 <= len(first) <= 115_000
    view = memoryview(first)[10:20]
    assert buffers.take(100_000) is not first
    view.release()
    assert buffers.take(90_000) is first
    assert len(first) >= 100_000


def test_one_that_is_too_small_is_not_used() -> None:
    buffers = FrameBuffers()
    first = buffers.take(40_000)
    assert len(buffers.take(80_000)) >= 80_000
    assert buffers.take(40_000) is first


def test_few_are_kept_and_no_large_one() -> None:
    buffers = FrameBuffers()
    large = buffers.take(SPARE_BYTES_MAX + 1)
    assert buffers.take(SPARE_BYTES_MAX + 1) is not large
    taken = [buffers.take(50_000 << place) for place in range(SPARES_MAX + 1)]
    # The first one had to go, and so a larger one serves.
    assert buffers.take(50_000) is taken[1]
    buffers.clear()
    assert buffers.take(50_000) is not taken[1]
