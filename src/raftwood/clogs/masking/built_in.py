"""The rules that come with clogs, by their names."""

import re
from collections.abc import Iterable
from typing import Final

import msgspec

from raftwood.base.errors import InvalidConfiguration
from raftwood.clogs.masking.cards import CARDS
from raftwood.clogs.masking.probes import Found, Probe, probe, view_of
from raftwood.clogs.masking.secrets import SECRETS

_LOCAL: Final = (
    b"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.!#$%*+^_~-"
    + bytes(range(0x80, 0x100))
)
"""What may be before an address's @, but for what stands before an address far more often."""
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


def _email(block: bytes, at: int) -> Found | None:
    domain = _DOMAIN.match(block, at)
    before = block[max(0, at - _LOCAL_BYTES_MAX) : at]
    size = len(before) - len(before.rstrip(_LOCAL))
    if domain is None or size == 0:
        return None
    return Found(at - size, domain.end(), b"***@***")


def _ipv4(block: bytes, at: int) -> Found | None:
    # Most numbers with a point in them have not three.
    if block.count(b".", at, at + _THREE_POINTS_BYTES) < 3:
        return None
    before = block[max(0, at - 4) : at]
    start = at - len(before) + len(before.rstrip(b"0123456789"))
    found = _IPV4.match(block, start)
    if found is None or before.endswith(b".", 0, len(before) - (at - start)):
        return None
    return Found(start, found.end())


BUILT_IN_RULES: Final = {
    rule.name: rule
    for rule in (
        BuiltInRule("cards", CARDS),
        BuiltInRule(
            "keys",
            # The first four letters say what kind of key it is.
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
such as `password`; e-mail addresses; addresses of version 4."""


def built_in_rules(names: Iterable[str]) -> list[BuiltInRule]:
    """`InvalidConfiguration` for a name that none has."""
    rules = []
    for name in names:
        rule = BUILT_IN_RULES.get(name)
        if rule is None:
            raise InvalidConfiguration(
                f"there is no masking rule {name[:80]!r}: choose from {', '.join(BUILT_IN_RULES)}"
            )
        rules.append(rule)
    return rules
