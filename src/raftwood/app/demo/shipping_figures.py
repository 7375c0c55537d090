"""What is counted and measured while web servers ship, and whether it is as it must be."""

from collections.abc import Collection, Iterable, Sequence

import msgspec

from raftwood.app.demo.pipeline_check import Check
from raftwood.app.demo.web_files import WebFiles
from raftwood.app.demo.web_orders import Given
from raftwood.clogs.client.counters import Counters, ServerCounters


class Killed(msgspec.Struct, frozen=True, kw_only=True):
    """What came of killing a receiver."""

    receiver: str
    files: int
    """That it had."""
    isolated_ms: float
    """Until all web servers had isolated it."""
    elsewhere: int
    """Of its files: lines made after it was killed were acked before it was back."""
    elsewhere_ms: float
    """Until then, for the last of its files."""
    others_ms: float
    """The same for the files of the other receivers."""
    away_s: float
    """Until it served again."""
    taken_back_ms: float
    """From then on until all web servers used it again."""
    acked_again: int
    """Lines by it after that."""


class Shipped(msgspec.Struct, frozen=True, kw_only=True):
    """What the web servers tell at their end."""

    killed: Killed
    files: dict[str, int]
    """How many each receiver has while all are well."""
    receivers: dict[str, ServerCounters]
    acked: int
    dropped: int
    refused: int

    @property
    def again(self) -> int:
        """Lines that were sent another time."""
        return sum(each.retried for each in self.receivers.values())


def added_up(counted: Iterable[Counters]) -> dict[str, ServerCounters]:
    """By receiver, of several shippers."""
    total: dict[str, ServerCounters] = {}
    for counters in counted:
        for name, each in counters.servers.items():
            known = total.setdefault(name, ServerCounters())
            for field in each.__struct_fields__:
                setattr(known, field, getattr(known, field) + getattr(each, field))
    return dict(sorted(total.items()))


def went_on(
    given: Sequence[Given], files: Collection[str], *, after_ns: int, until_ns: int
) -> tuple[int, float]:
    """Of how many of the files something that was given after a moment was acked until another one;
    and how long that took, for the last of these.
    """
    first: dict[str, int] = {}
    for each in given:
        if each.file in files and each.given_ns > after_ns and each.acked_ns < until_ns:
            first[each.file] = min(each.acked_ns, first.get(each.file, each.acked_ns))
    longest_ns = max((acked_ns - after_ns for acked_ns in first.values()), default=0)
    return len(first), longest_ns / 1e6


def shipping_checks(
    shipped: Shipped, *, lines: int, made: WebFiles, found: WebFiles
) -> list[Check]:
    """`found` are the files as the stream has them, by its topics."""
    killed = shipped.killed
    return [
        Check("lines made → acked to the web servers", lines, shipped.acked),
        Check("lines dropped or refused", 0, shipped.dropped + shipped.refused),
        Check("files made → files in the stream", len(made), len(found)),
        Check("files → every line once, in order", len(made), len(made.same_as(found))),
        Check("files of the killed receiver → went on", killed.files, killed.elsewhere),
    ]
