"""Many rules over many lines at once, and how much each of them has masked."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final

from raftwood.base.errors import InvalidConfiguration
from raftwood.clogs.masking.built_in import BuiltInRule
from raftwood.clogs.masking.patterns import MaskRule, PatternRule
from raftwood.clogs.masking.probes import Found, Probe, view_of


class Masking:
    """Rules, and what they have masked. Rules of users see what the built-in ones have left."""

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
        """How many values each rule has masked so far."""
        return MappingProxyType(self._counts)

    def mask_block(self, block: bytes) -> bytes:
        """Lines with newlines between them: as many as before."""
        if self._probes:
            found = self._found(block)
            if found:
                block = self._replaced(block, found)
        for pattern in self._patterns:
            block, count = pattern.masked(block)
            self._counts[pattern.name] += count
        return block

    def mask_lines(self, lines: list[bytes]) -> list[bytes]:
        """Each line on its own; one that has newlines in it stays one."""
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

    def _found(self, block: bytes) -> list[tuple[str, Found]]:
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

    def _replaced(self, block: bytes, found: list[tuple[str, Found]]) -> bytes:
        """Of what overlaps, all is replaced by what stands for the first: for the longest, and of
        equal ones for that which shows the least."""
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
