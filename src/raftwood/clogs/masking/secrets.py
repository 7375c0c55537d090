r"""Values of fields whose names say that they are secret, in plain text, JSON, URLs and reprs.

    password=hunter2    token: abc,    "api_key": "a\"b"    {\"secret\":\"x\"}    ?token=abc&page=2
    env['PASSWORD'] = 'x'    <token>abc</token>

A value that does not end is masked to the end of its line: rather too much than too little. What is
around it stays as it is, so that JSON stays JSON.
"""

import re
from typing import Final

from raftwood.clogs.masking.probes import MASK, Found, Probe, view_of

_KINDS_OF_KEYS: Final = (
    *("api", "access", "account", "auth", "encryption", "private", "secret", "signing"),
)
_NAMES: Final = {
    "pass": "pass(?:w(?:or)?d|phrase)",
    "secret": "secret",
    "token": "token",
    # What comes before is looked at backwards, since the needle is where the look begins.
    "key": f"(?:{'|'.join(f'(?<={kind})|(?<={kind}[_-])' for kind in _KINDS_OF_KEYS)})key",
}


def _quoted(number: int) -> str:
    """Up to the quote that ends it, which may be escaped as the first one is: once, where JSON is
    in a text of JSON, or twice."""
    return rf"""
        (?P<plain{number}>["']) (?P<plain_value{number}>(?:
            \\[^\n] | (?!(?P=plain{number}))[^\n\\] )++)
        | (?P<once{number}>\\["']) (?P<once_value{number}>(?:
            # A backslash of the value is four here: the last of them escapes no quote.
            \\{{4}} | \\{{3}}["'] | (?!(?P=once{number}))[^\n] )++)
        | (?P<twice{number}>\\{{3}}["']) (?P<twice_value{number}>(?:
            (?!(?P=twice{number}))[^\n] )++)
    """


_VALUE: Final = rf"""
(?:
    # The name is in quotes: JSON, a repr of Python's, an item of an array.
    (?P<quote>\\{{0,3}}["'])\]?[ \t]*(?:=>|[:=])[ \t]*
    (?: {_quoted(1)} | (?!(?:null|none|true|false)\b)(?P<scalar_value>[^\s,\]}}"'\\{{\[]++) )
    |
    [ \t]*(?::=?|={{1,3}}>?)[ \t]*
    (?: {_quoted(2)}
        # What may end a value is part of it where more follows at once, but for another field.
        | (?P<bare_value>(?:
            [^\s"'&,;)}}\]>\\]
            | \\\\
            | \\(?!["'])
            | [,;)}}\]>](?![\s,;)}}\]>"'&\\]|[\w.-]+[=:]|\Z)
        )++)
    )
    |
    # Not endless, since it may not be followed by what has to follow.
    >(?P<element_value>[^<\n]{{1,1024}}+)(?=</)
)
"""


def _probe(needle: str, name: str) -> Probe:
    pattern = re.compile(f"{name}{_VALUE}".encode(), re.VERBOSE | re.IGNORECASE)
    values = [number for group, number in pattern.groupindex.items() if "value" in group]
    scalar = pattern.groupindex["scalar_value"]

    def look(block: bytes, at: int) -> Found | None:
        found = pattern.match(block, at)
        if found is None:
            return None
        value = next(each for each in values if found[each] is not None)
        if value == scalar:
            # A number in JSON becomes a text, in quotes like those of the name.
            quote = found["quote"]
            return Found(*found.span(value), quote + MASK + quote)
        return Found(*found.span(value))

    return Probe(view_of(needle.encode()), look)


SECRETS: Final = tuple(_probe(needle, name) for needle, name in _NAMES.items())
