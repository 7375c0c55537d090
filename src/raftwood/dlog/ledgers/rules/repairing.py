"""What a bookie should hold, and how its place in a ledger's metadata goes to another one.

Only entries that are known to be confirmed are copied: those of a closed ledger, and those of an
open one that are in front of its last segment (a segment begins behind what was confirmed when it
was made). Who holds the last segment of an open ledger is its writer's affair: a repair that
changed it could leave an ack quorum of bookies that recoveries no longer ask and fence.

The metadata name the new holder only once it has every entry: whoever reads or recovers the ledger
believes them.
"""

from collections.abc import Iterator, Mapping

import msgspec
from msgspec.structs import replace

from raftwood.base.errors import Conflict
from raftwood.dlog.ledgers.model import BookieId, LedgerConfig, LedgerMetadata, Segment


class Share(msgspec.Struct, frozen=True):
    """The entries from `first` to `last` of which a bookie has its part by its place."""

    segment: int
    place: int
    first: int
    last: int

    def entries(self, config: LedgerConfig) -> Iterator[int]:
        """Those that go to the place, in order."""
        for entry in range(self.first, self.last + 1):
            if (self.place - entry) % config.ensemble < config.write_quorum:
                yield entry


def shares_of(metadata: LedgerMetadata, bookie: BookieId) -> list[Share]:
    """What a bookie should hold of the segments that are settled."""
    segments = metadata.segments
    found: list[Share] = []
    for number, segment in enumerate(segments):
        if number + 1 < len(segments):
            last = segments[number + 1].first - 1
        elif metadata.is_closed:
            last = metadata.last_entry
        else:
            break
        if bookie in segment.bookies:
            found.append(Share(number, segment.bookies.index(bookie), segment.first, last))
    return found


def is_being_written(metadata: LedgerMetadata, bookie: BookieId) -> bool:
    """Whether a bookie holds a segment that is not settled."""
    return not metadata.is_closed and bookie in metadata.segments[-1].bookies


def with_holders(
    metadata: LedgerMetadata,
    *,
    found: LedgerMetadata,
    bookie: BookieId,
    holders: Mapping[int, BookieId],
) -> LedgerMetadata | None:
    """Others hold the shares of a bookie, by segment; `Conflict` where the segments are not those
    that were copied.
    """
    wanted = tuple(
        _with_holder(segment, bookie, holders[number]) if number in holders else segment
        for number, segment in enumerate(found.segments)
    )
    if metadata.segments == wanted:
        return None  # An answer was lost: it is done.
    if metadata.segments != found.segments:
        raise Conflict("the ledger's segments changed while entries were copied: repair it again")
    return replace(metadata, segments=wanted)


def _with_holder(segment: Segment, bookie: BookieId, holder: BookieId) -> Segment:
    bookies = tuple(holder if each == bookie else each for each in segment.bookies)
    return Segment(segment.first, bookies)
