"""Where ledgers' metadata lie in ZooKeeper: BookKeeper's layouts of nodes by ledger id.

    hierarchical   00/0000/L0001                  ids of ten digits, 2-4-4
    long           000/0000/0000/0000/L0001       ids of nineteen digits, 3-4-4-4-4

The layout `HierarchicalLedgerManagerFactory` has both: the long one for ids that the first can't
hold.
"""

import re
from collections.abc import Sequence
from typing import Final

import msgspec

from raftwood.base.errors import UnsupportedVersion

SHORT: Final = (2, 4, 4)
LONG: Final = (3, 4, 4, 4, 4)
_SHORT_MAX: Final = (1 << 31) - 1
_FACTORY: Final = re.compile(r"org\.apache\.bookkeeper\.meta\.(\w+)LedgerManagerFactory")
_LAYOUTS: Final[dict[str, tuple[tuple[int, ...], ...]]] = {
    "LegacyHierarchical": (SHORT,),
    "Hierarchical": (SHORT, LONG),
    "LongHierarchical": (LONG,),
}


class LedgerPaths(msgspec.Struct, frozen=True):
    """Paths below the root of all ledgers, without a slash before them."""

    layouts: tuple[tuple[int, ...], ...]
    """Digits at each level; those of low ids first."""

    @classmethod
    def parse(cls, layout: bytes) -> "LedgerPaths":
        """The node LAYOUT: a version, and behind it a factory's name and version."""
        lines = layout.decode(errors="replace").split("\n")
        name = lines[1].partition(":")[0] if len(lines) > 1 else ""
        known = _FACTORY.fullmatch(name)
        if lines[0] not in ("1", "2") or known is None or known[1] not in _LAYOUTS:
            raise UnsupportedVersion(
                f"the ledgers' layout {layout[:200]!r} is not supported: these are "
                f"{', '.join(_LAYOUTS)}"
            )
        return cls(_LAYOUTS[known[1]])

    def path(self, ledger: int) -> str:
        digits = self.layouts[0]
        if digits is SHORT and ledger >= _SHORT_MAX:
            digits = self.layouts[-1]
        text = f"{ledger:0{sum(digits)}}"
        if len(text) > sum(digits):
            raise UnsupportedVersion(f"ledger {ledger} is above what the ledgers' layout can hold")
        parts = []
        for count in digits:
            parts.append(text[:count])
            text = text[count:]
        return "/".join((*parts[:-1], f"L{parts[-1]}"))


def children(names: Sequence[str], digits: Sequence[int]) -> list[str]:
    """Of nodes at a level, those of the layout, in order; `digits` from this level on."""
    letter = "L" if len(digits) == 1 else ""
    pattern = re.compile(f"{letter}[0-9]{{{digits[0]}}}")
    return sorted(name for name in names if pattern.fullmatch(name))
