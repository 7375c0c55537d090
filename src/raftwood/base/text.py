"""Text from outside, made harmless for a terminal or a log."""

import re
from typing import Final

# C0, DEL, C1, the two Unicode line breaks, text direction overrides, and lone surrogates.
_CONTROL: Final = re.compile(
    "[\x00-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]"
)


def escaped(text: str) -> str:
    """The text with control characters written out, so that it can neither forge a line nor move
    a terminal's cursor.
    """
    return _CONTROL.sub(lambda match: match[0].encode("unicode_escape").decode(), text)
