"""How long clients wait for their answers, as far as a turn of the loop can tell cheaply."""


class ClientLatency:
    """Of all clients of a node, since somebody looked last."""

    __slots__ = ("_count", "_waited_s", "is_asked")

    def __init__(self) -> None:
        self.is_asked = False
        """Somebody has sent something."""
        self._waited_s = 0.0
        self._count = 0

    def waited(self, duration_s: float) -> None:
        """What one turn answered was held for so long; that of others went out at once."""
        self._waited_s += duration_s
        self._count += 1

    def take_ms(self) -> float | None:
        """The mean of answers that were held; 0 where none were, None where nobody asked."""
        if not self.is_asked and not self._count:
            return None
        mean_ms = 1_000 * self._waited_s / max(1, self._count)
        self.is_asked, self._waited_s, self._count = False, 0.0, 0
        return mean_ms
