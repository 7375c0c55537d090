"""What a long command tells meanwhile: one line on the terminal, and nothing elsewhere."""

import sys
from types import TracebackType
from typing import TYPE_CHECKING, Self

if TYPE_CHECKING:
    from rich.status import Status


class Progress:
    """Use it as a context manager; the line is gone at its end."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._status: Status | None = None

    def __enter__(self) -> Self:
        if sys.stderr.isatty():
            # Loaded only where it is seen.
            from rich.console import Console  # noqa: PLC0415

            self._status = Console(stderr=True).status(self._text)
            self._status.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if self._status is not None:
            self._status.stop()

    def say(self, text: str) -> None:
        """Another text in place of the last one."""
        if self._status is not None and text != self._text:
            self._text = text
            self._status.update(text)
