"""Rules of users: regular expressions over bytes, which see one line at a time."""

import re
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from raftwood.base.errors import InvalidConfiguration

_LOOKS_FURTHER: Final = re.compile(r"\(\?<?[=!]|\\[ABZ]")
"""What may see where a line begins or ends: such a pattern is given single lines."""
_SAMPLES: Final = (b"", b"a", b"a 0")


class MaskRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a pattern matches within a line is replaced."""

    name: Annotated[str, Meta(min_length=1, max_length=80)]
    pattern: Annotated[str, Meta(min_length=1, max_length=4096)]
    """As Python's `re` has them, matched against bytes; `^` and `$` are a line's begin and end."""
    replacement: Annotated[str, Meta(max_length=1024)] = "***"
    r"""May have groups of the pattern, as `\1` and `\g<name>`."""


class _SpansLines(Exception):
    """A match has a newline in it."""


class PatternRule:
    """A user's rule, ready to use."""

    def __init__(self, rule: MaskRule) -> None:
        """`InvalidConfiguration` for one that cannot be used."""
        self.name: Final = rule.name
        self._replacement: Final = rule.replacement.encode()
        try:
            self._pattern: Final = re.compile(rule.pattern.encode(), re.MULTILINE)
            self._pattern.sub(self._replacement, b"")
        except (re.error, IndexError) as error:
            raise InvalidConfiguration(
                f"the masking rule {rule.name!r} cannot be used: {error}; mend its pattern or its "
                "replacement"
            ) from error
        if any(not found[0] for text in _SAMPLES for found in self._pattern.finditer(text)):
            raise InvalidConfiguration(
                f"the masking rule {rule.name!r} matches the empty text: let its pattern have one "
                "character at least"
            )
        self._is_by_line = _LOOKS_FURTHER.search(rule.pattern) is not None

    def masked(self, block: bytes) -> tuple[bytes, int]:
        """The block with as many lines as before, and how many matches were replaced."""
        count = 0

        def replaced(found: re.Match[bytes]) -> bytes:
            nonlocal count
            text = found[0]
            if b"\n" in text:
                raise _SpansLines
            if not text:
                return text
            count += 1
            # An escape in the replacement may mean a newline too.
            return found.expand(self._replacement).replace(b"\n", b" ")

        if not self._is_by_line:
            try:
                return self._pattern.sub(replaced, block), count
            except _SpansLines:
                # Once is enough to know that it can.
                self._is_by_line = True
                count = 0
        lines = [self._pattern.sub(replaced, line) for line in block.split(b"\n")]
        return b"\n".join(lines), count
