"""Masking: makes sensitive values in lines unreadable before they leave, a block at a time.

Built-in rules search for a short text, the needle, that stands in or before everything they mask.
This is fast; only there they look closer. Users' rules are regular expressions. Neither ever joins
two lines.
"""

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Annotated, Final

import msgspec
from msgspec import Meta

from raftwood.base.errors import InvalidConfiguration

MASK: Final = b"***"
_LETTERS: Final = b"abcdefghijklmnopqrstuvwxyz"


def _view_table() -> bytes:
    # Characters that no needle has become one byte, and the bytes that stand for others differ from
    # all letters in their last six bits: this lets Python's search skip ahead.
    table = bytearray(b"?" * 256)
    for letter in _LETTERS:
        table[letter] = table[ord(chr(letter).upper())] = letter
    for characters, seen in ((b"0123456789", ";"), (b" -", "<"), (b".", "="), (b"@", ">")):
        for character in characters:
            table[character] = ord(seen)
    # One needle for AKIA and ASIA.
    table[ord("s")] = table[ord("S")] = ord("k")
    return bytes(table)


_VIEW: Final = _view_table()


def view_of(block: bytes) -> bytes:
    """Returns the block in the form in which needles are searched."""
    return block.translate(_VIEW)


class MaskedSpan(msgspec.Struct, frozen=True, gc=False):
    """A part of a line to replace, and its replacement."""

    start: int
    end: int
    replacement: bytes = MASK


class Probe(msgspec.Struct, frozen=True):
    """One way to find a sensitive value."""

    needle: bytes
    """The searched text, in the form that `view_of` makes."""
    look: Callable[[bytes, int], MaskedSpan | None]
    """Looks closer at a place of the block where the needle is, never beyond the line's end."""
    may_overlap: bool = False
    """A match may begin within the one before it."""


def probe(needle: str, pattern: str) -> Probe:
    """Returns a probe that masks the group `value` of a pattern, matched at the needle."""
    match = re.compile(pattern.encode(), re.VERBOSE).match

    def look(block: bytes, at: int) -> MaskedSpan | None:
        found = match(block, at)
        return None if found is None else MaskedSpan(*found.span("value"))

    return Probe(view_of(needle.encode()), look)


# Numbers of payment cards: 13 to 19 digits with the right check digit, in one or in groups.
#
# The first digit must be that of a card issuer, 2 to 6, so that times since 1970 in milliseconds
# and nanoseconds are left alone. Groups must be the ones in which cards are written: of four digits
# each, with a shorter last one, or of 4, 6 and 4 or 5. Spaces and dashes between groups, and the
# last four digits, stay.

_SHOWN_DIGITS: Final = 4
_DIGITS: Final = b"0123456789"
_HIDDEN: Final = bytes.maketrans(_DIGITS, b"*" * 10)
_VALUES: Final = bytes.maketrans(_DIGITS, bytes(range(10)))
_DOUBLED: Final = bytes.maketrans(_DIGITS, bytes((0, 2, 4, 6, 8, 1, 3, 5, 7, 9)))
# Digits behind a point are part of a fraction.
_IN_ONE: Final = re.compile(rb"(?<![0-9])(?<![0-9]\.)[2-6][0-9]{12,18}+(?![0-9])")
_FOURS: Final = re.compile(
    rb"(?<![0-9])[2-6][0-9]{3}(?:[ -][0-9]{4}){2}[ -][0-9]{1,4}(?![0-9])"
    rb"(?P<more>[ -][0-9]{1,3}(?![0-9]))?"
)
_SIX_BETWEEN: Final = re.compile(rb"(?<![0-9])[2-6][0-9]{3}[ -][0-9]{6}[ -][0-9]{4,5}(?![0-9])")


def is_card_number(digits: bytes) -> bool:
    """Whether the last digit fits the others by Luhn's rule."""
    last, others = digits[::-2], digits[-2::-2]
    return (sum(last.translate(_VALUES)) + sum(others.translate(_DOUBLED))) % 10 == 0


def _found(block: bytes, start: int, end: int) -> MaskedSpan | None:
    number = block[start:end]
    digits = number.translate(None, b" -")
    if not 13 <= len(digits) <= 19 or not is_card_number(digits):
        return None
    # The last four digits may be in two groups.
    shown = 0
    cut = len(number)
    while shown < _SHOWN_DIGITS:
        cut -= 1
        shown += number[cut] in _DIGITS
    return MaskedSpan(start, end, number[:cut].translate(_HIDDEN) + number[cut:])


def _in_one(block: bytes, at: int) -> MaskedSpan | None:
    found = _IN_ONE.match(block, at)
    return None if found is None else _found(block, *found.span())


def _fours(block: bytes, at: int) -> MaskedSpan | None:
    found = _FOURS.match(block, at)
    if found is None:
        return None
    whole = _found(block, *found.span())
    if whole is None and found.start("more") > 0:
        # The digits after the first group belong to another number.
        return _found(block, at, found.start("more"))
    return whole


def _six_between(block: bytes, at: int) -> MaskedSpan | None:
    found = _SIX_BETWEEN.match(block, at)
    return None if found is None else _found(block, *found.span())


CARDS: Final = (
    Probe(view_of(b"0000000000000"), _in_one),
    # A year before a card number may look like the first group of another number.
    Probe(view_of(b"0000 0000 0000 0"), _fours, may_overlap=True),
    Probe(view_of(b"0000 000000 0000"), _six_between),
)


# Values of fields whose names say that they are secret, in plain text, JSON, URLs and reprs.
#
#     password=hunter2    token: abc,    "api_key": "a\"b"    {\"secret\":\"x\"}
# ?token=abc&page=2     env['PASSWORD'] = 'x'    <token>abc</token>
#
# A value that does not end is masked to the end of its line: rather too much than too little. What
# is around it stays as it is, so that JSON stays JSON.

_KINDS_OF_KEYS: Final = (
    *("api", "access", "account", "auth", "encryption", "private", "secret", "signing"),
)
_NAMES: Final = {
    "pass": "pass(?:w(?:or)?d|phrase)",
    "secret": "secret",
    "token": "token",
    # The prefix is checked backwards, because the look begins at the needle.
    "key": f"(?:{'|'.join(f'(?<={kind})|(?<={kind}[_-])' for kind in _KINDS_OF_KEYS)})key",
}


def _quoted(number: int) -> str:
    """Matches up to the closing quote, which may be escaped like the opening one: once if JSON is
    in a text of JSON, or twice.
    """
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

    def look(block: bytes, at: int) -> MaskedSpan | None:
        found = pattern.match(block, at)
        if found is None:
            return None
        value = next(each for each in values if found[each] is not None)
        if value == scalar:
            # A number in JSON becomes a text, in quotes like those of the name.
            quote = found["quote"]
            return MaskedSpan(*found.span(value), quote + MASK + quote)
        return MaskedSpan(*found.span(value))

    return Probe(view_of(needle.encode()), look)


SECRETS: Final = tuple(_probe(needle, name) for needle, name in _NAMES.items())


# The rules that come with clogs, by their names.

_LOCAL: Final = (
    b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.!#$%*+^_~-"
    + bytes(range(0x80, 0x100))
)
"""The local part of an address; the lookbehind excludes frequent other text before an @."""
_LOCAL_BYTES_MAX: Final = 256
_DOMAIN: Final = re.compile(
    rb"@(?:[A-Za-z0-9\x80-\xff_-]{1,63}\.)+[A-Za-z\x80-\xff][A-Za-z0-9\x80-\xff-]{1,62}"
    rb"(?![A-Za-z0-9-])"
)
_OCTET: Final = rb"(?:25[0-5]|2[0-4][0-9]|1[0-9]{2}|[1-9]?[0-9])"
_IPV4: Final = re.compile(rb"(?:%b\.){3}%b(?![0-9]|\.[0-9])" % (_OCTET, _OCTET))
_THREE_POINTS_BYTES: Final = 10


class BuiltInRule(msgspec.Struct, frozen=True):
    """A rule that comes with clogs."""

    name: str
    probes: tuple[Probe, ...]


def _email(block: bytes, at: int) -> MaskedSpan | None:
    domain = _DOMAIN.match(block, at)
    before = block[max(0, at - _LOCAL_BYTES_MAX) : at]
    size = len(before) - len(before.rstrip(_LOCAL))
    if domain is None or size == 0:
        return None
    return MaskedSpan(at - size, domain.end(), b"***@***")


def _ipv4(block: bytes, at: int) -> MaskedSpan | None:
    # Most numbers with a point have fewer than three.
    if block.count(b".", at, at + _THREE_POINTS_BYTES) < 3:
        return None
    before = block[max(0, at - 4) : at]
    start = at - len(before) + len(before.rstrip(b"0123456789"))
    found = _IPV4.match(block, start)
    if found is None or before.endswith(b".", 0, len(before) - (at - start)):
        return None
    return MaskedSpan(start, found.end())


BUILT_IN_RULES: Final = {
    rule.name: rule
    for rule in (
        BuiltInRule("cards", CARDS),
        BuiltInRule(
            "keys",
            # The first four letters give the kind of the key.
            (
                probe(
                    "akia",
                    r"(?<![A-Za-z0-9]) A(?:KI|SI)A (?P<value>[A-Z0-9]{16}) (?![A-Za-z0-9])",
                ),
            ),
        ),
        BuiltInRule(
            "tokens",
            (
                probe("bearer", r"(?i:bearer) (?:[ \t]|%20)++ (?P<value>[\w.~+/=-]++)"),
                probe(
                    "authorization",
                    r"""(?i:authorization) \\{0,3}["']?[ \t]*[:=][ \t]*\\{0,3}["']?
                    (?: (?i:basic|digest|token|negotiate|ntlm|apikey) [ \t]++ )
                    (?P<value>[^\s"'\\]++)""",
                ),
                probe(
                    "eyj",
                    r"(?<![\w-]) (?P<value>eyJ[\w-]{5,}+\.[\w-]{5,}+ (?:\.[\w-]*+){0,3})",
                ),
            ),
        ),
        BuiltInRule("secrets", SECRETS),
        BuiltInRule("emails", (Probe(view_of(b"@"), _email),)),
        BuiltInRule("ipv4", (Probe(view_of(b"0.0"), _ipv4),)),
    )
}
"""By name: card numbers; ids of access keys; bearer tokens, credentials and JWTs; values of fields
such as `password`; e-mail addresses; IPv4 addresses.
"""


def built_in_rules(names: Iterable[str]) -> list[BuiltInRule]:
    """Returns rules by name; `InvalidConfiguration` for an unknown name."""
    rules = []
    for name in names:
        rule = BUILT_IN_RULES.get(name)
        if rule is None:
            raise InvalidConfiguration(
                f"there is no masking rule {name[:80]!r}: choose from {', '.join(BUILT_IN_RULES)}"
            )
        rules.append(rule)
    return rules


# Users' rules: regular expressions over bytes, each of which sees one line at a time.

_LOOKS_FURTHER: Final = re.compile(r"\(\?<?[=!]|\\[ABZ]")
"""Patterns that may see where a line begins or ends; they are matched against single lines."""
_SAMPLES: Final = (b"", b"a", b"a 0")


class MaskRule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A rule that replaces matches of a pattern within a line."""

    name: Annotated[str, Meta(min_length=1, max_length=80)]
    pattern: Annotated[str, Meta(min_length=1, max_length=4096)]
    """In Python's `re` syntax, matched against bytes; `^` and `$` are a line's begin and end."""
    replacement: Annotated[str, Meta(max_length=1024)] = "***"
    r"""May refer to groups of the pattern, as `\1` and `\g<name>`."""


class _SpansLines(Exception):
    """A match contains a newline."""


class PatternRule:
    """A user's rule, compiled."""

    def __init__(self, rule: MaskRule) -> None:
        """`InvalidConfiguration` if the rule cannot be used."""
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
        """Returns the block with as many lines as before, and the number of replaced matches."""
        count = 0

        def replaced(found: re.Match[bytes]) -> bytes:
            nonlocal count
            text = found[0]
            if b"\n" in text:
                raise _SpansLines
            if not text:
                return text
            count += 1
            # An escape in the replacement may produce a newline too.
            return found.expand(self._replacement).replace(b"\n", b" ")

        if not self._is_by_line:
            try:
                return self._pattern.sub(replaced, block), count
            except _SpansLines:
                # The pattern can match newlines: from now on match single lines.
                self._is_by_line = True
                count = 0
        lines = [self._pattern.sub(replaced, line) for line in block.split(b"\n")]
        return b"\n".join(lines), count


# Applies many rules to many lines at once, and counts their replacements.


class Masking:
    """Rules, and their counts. Users' rules see the result of the built-in ones."""

    def __init__(self, rules: Sequence[BuiltInRule | MaskRule]) -> None:
        self._counts: Final[dict[str, int]] = {}
        self._probes: Final[list[tuple[str, Probe]]] = []
        self._patterns: Final[list[PatternRule]] = []
        for rule in rules:
            if rule.name in self._counts:
                raise InvalidConfiguration(f"two masking rules are called {rule.name!r}")
            self._counts[rule.name] = 0
            if isinstance(rule, MaskRule):
                self._patterns.append(PatternRule(rule))
            else:
                self._probes.extend((rule.name, probe) for probe in rule.probes)

    @property
    def counts(self) -> Mapping[str, int]:
        """Returns how many values each rule has masked so far."""
        return MappingProxyType(self._counts)

    def mask_block(self, block: bytes) -> bytes:
        """Masks lines joined by newlines; their number stays the same."""
        if self._probes:
            found = self._found(block)
            if found:
                block = self._replaced(block, found)
        for pattern in self._patterns:
            block, count = pattern.masked(block)
            self._counts[pattern.name] += count
        return block

    def mask_lines(self, lines: list[bytes]) -> list[bytes]:
        """Masks each line on its own; one that contains newlines stays one."""
        if not lines:
            return []
        block = b"\n".join(lines)
        masked = self.mask_block(block)
        if masked is block:
            return lines
        pieces = masked.split(b"\n")
        if len(pieces) == len(lines):
            return pieces
        rest = iter(pieces)
        return [b"\n".join([next(rest) for _ in range(line.count(b"\n") + 1)]) for line in lines]

    def _found(self, block: bytes) -> list[tuple[str, MaskedSpan]]:
        view = view_of(block)
        found = []
        for name, probe in self._probes:
            needle, look = probe.needle, probe.look
            at = view.find(needle)
            while at >= 0:
                one = look(block, at)
                if one is not None:
                    found.append((name, one))
                if one is None or probe.may_overlap:
                    at += 1
                else:
                    at = max(at + 1, one.end)
                at = view.find(needle, at)
        return found

    def _replaced(self, block: bytes, found: list[tuple[str, MaskedSpan]]) -> bytes:
        """Replaces overlapping spans together, by the replacement of the first: of spans that begin
        at one place the longest counts, and of equal ones the one that shows the least.
        """
        found.sort(key=lambda each: (each[1].start, -each[1].end, len(each[1].replacement)))
        parts: list[bytes] = []
        done = 0
        for name, one in found:
            if one.start >= done:
                parts += (block[done : one.start], one.replacement)
                self._counts[name] += 1
            done = max(done, one.end)
        parts.append(block[done:])
        return b"".join(parts)


def masking_of(masks: Iterable[str], mask_rules: Iterable[MaskRule]) -> Masking | None:
    """Returns the masking, or None without rules; `InvalidConfiguration` for an unusable rule."""
    rules: list[BuiltInRule | MaskRule] = [*built_in_rules(masks), *mask_rules]
    return Masking(rules) if rules else None
