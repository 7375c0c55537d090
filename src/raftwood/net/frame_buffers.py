"""Buffers of large frames, used again once nobody views them: a new one costs as much as the copy
of a frame, since it is filled with zeros, page by page.
"""

from typing import Final

SPARES_MAX: Final = 3
SPARE_BYTES_MAX: Final = 4 << 20
_STEPS_BITS: Final = 3


class FrameBuffers:
    """Of one connection."""

    __slots__ = ("_spares",)

    def __init__(self) -> None:
        self._spares: list[bytearray] = []

    def take(self, size: int) -> bytearray:
        """A buffer with room for so many bytes."""
        spares = self._spares
        for spare in spares:
            if len(spare) >= size and _is_free(spare):
                return spare
        # Sizes in steps, so that frames of about the same size share buffers.
        step = max(1, 1 << size.bit_length() - _STEPS_BITS - 1)
        made = bytearray(-(-size // step) * step)
        if len(made) <= SPARE_BYTES_MAX:
            if len(spares) >= SPARES_MAX:
                del spares[0]
            spares.append(made)
        return made

    def clear(self) -> None:
        """Let go of all."""
        self._spares.clear()


def _is_free(buffer: bytearray) -> bool:
    """A buffer that somebody views does not change its size."""
    try:
        last = buffer.pop()
    except BufferError:
        return False
    buffer.append(last)
    return True
