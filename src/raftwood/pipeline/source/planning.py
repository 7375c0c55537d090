"""Where a query begins and ends: asks LogHub, and leaves the deciding to the rules of `offsets`."""

from collections.abc import Callable, Iterable, Mapping
from typing import Final

from raftwood.base.errors import InvalidConfiguration, StoreError
from raftwood.base.position import Position
from raftwood.base.seams import StoredBatch
from raftwood.loghub.batches import decode_head
from raftwood.loghub.wire import ShardDetail
from raftwood.pipeline.admission import Admission, Step
from raftwood.pipeline.hub import Hub
from raftwood.pipeline.offsets import ShardRange, ShardView
from raftwood.pipeline.options import EARLIEST, Place

_ROW_BYTES_GUESSED: Final = 256
"""Of a batch whose records nobody counted."""


def shard_views(details: Iterable[ShardDetail]) -> list[ShardView]:
    return [
        ShardView(
            id=each.shard.id,
            parents=each.shard.parents,
            first=Position(int(each.first)),
            next=Position(int(each.next)),
            is_ended=each.shard.ends_at is not None,
            parent_ends=tuple(Position(int(end)) for end in each.shard.parent_ends),
        )
        for each in details
    ]


def placed(
    name: str, views: Iterable[ShardView], given: str | Mapping[int, Place]
) -> dict[int, Position]:
    """`earliest`, `latest` or positions by shard; shards that are not named begin at their first
    position, and end behind their last.
    """
    known = {each.id: each for each in views}
    if isinstance(given, str):
        return {each.id: each.first if given == EARLIEST else each.next for each in known.values()}
    found = {}
    for shard, place in given.items():
        view = known.get(shard)
        if view is None:
            raise InvalidConfiguration(f"{name} names shard {shard}, which is not there")
        if not isinstance(place, str):
            found[shard] = place
        else:
            found[shard] = view.first if place == EARLIEST else view.next
        if found[shard] > view.next:
            raise InvalidConfiguration(
                f"{name} says {place} for shard {shard}, which ends at {view.next}"
            )
    return found


def admitted(
    hub: Hub,
    wanted: Mapping[int, ShardRange],
    rows_max: int,
    archived: Callable[[ShardRange], tuple[list[Step], Position] | None],
) -> dict[int, Position]:
    """How far each shard is read, with so many rows together; `archived` says what there is of a
    range without asking the log, and where that goes on.
    """
    admission = Admission(wanted, rows_max)
    while (asked := admission.wanted()) is not None:
        history = archived(asked)
        if history is not None:
            admission.found(asked.shard, *history)
            continue
        pulled = hub.heads(asked.shard, asked.begin)
        steps = [Step(each.position, _rows(each)) for each in pulled.batches]
        following = asked.end if pulled.is_ended else max(pulled.next, pulled.first)
        if following <= asked.begin:
            following = asked.end  # what is not there yet is no reason to wait
        admission.found(asked.shard, steps, following)
    return admission.ends()


def _rows(stored: StoredBatch) -> int:
    try:
        head = decode_head(stored.data)
    except StoreError:
        return 1  # what cannot be read is one row at the most
    return head.records or max(1, head.raw_bytes // _ROW_BYTES_GUESSED)
