"""A look at the logs and then at their archive: each shard from the first archived record on.

In this order: what was in a log then is archived by the second look, or was not truncated before
it. The other way round, a shard might be archived, truncated and deleted between the two.
"""

from collections.abc import Mapping
from typing import Final

import msgspec

from raftwood.base.position import Position
from raftwood.loghub.client.errors import RecordsFreed
from raftwood.pipeline.archive.archive import Archive
from raftwood.pipeline.archive.archive_rules import Cut, unite
from raftwood.pipeline.archive.manifest import Manifest
from raftwood.pipeline.hub import Hub
from raftwood.pipeline.source.planning import shard_views

_LOOKS_MAX: Final = 5


class Look(msgspec.Struct, frozen=True):
    """What there is to read, at one moment."""

    manifest: Manifest
    cuts: list[Cut]
    log_firsts: dict[int, Position]
    """Where each shard's log begins."""


def look(hub: Hub, archive: Archive | None, *, skips_freed: bool = False) -> Look:
    """Again where the archive has a shard that has come meanwhile.

    `RecordsFreed` where it was truncated without that, unless it is to be skipped.
    """
    manifest = Manifest(())
    for _ in range(_LOOKS_MAX):
        views = shard_views(hub.details())
        if archive is not None:
            manifest = archive.manifest()
        cuts = unite(manifest.shards, views)
        if cuts is not None:
            return Look(manifest, cuts, {each.id: each.first for each in views})
    if not skips_freed:
        raise RecordsFreed(
            "records were freed before they were archived: archive more often, and skip them here"
        )
    firsts = {each.id: each.first for each in views}
    newest = max(firsts, default=-1)
    for shard, found in list(manifest.shards.items()):
        if shard > newest:
            del manifest.shards[shard]  # it has come since: the next look has it
        found.end = max(found.end, firsts.get(shard, found.end))
        found.is_ended = found.is_ended or shard not in firsts
    cuts = unite(manifest.shards, views)
    assert cuts is not None
    return Look(manifest, cuts, firsts)


class Part(msgspec.Struct, frozen=True, kw_only=True):
    """What is read of a shard: from the archive begin ≤ position < tail, from the log the rest."""

    shard: int
    begin: Position
    tail: Position
    end: Position


def parts(
    cuts: list[Cut],
    *,
    starts: Mapping[int, Position] | None = None,
    ends: Mapping[int, Position] | None = None,
) -> list[Part]:
    """Between positions, if they are given; `RecordsFreed` where a start is before all that is
    left.
    """
    found = []
    for cut in cuts:
        begin = (starts or {}).get(cut.shard, cut.first)
        end = min(cut.end, (ends or {}).get(cut.shard, cut.end))
        if begin < cut.first:
            raise RecordsFreed(
                f"shard {cut.shard} begins at {cut.first}: what was between {begin} and that is "
                "gone; start from there"
            )
        if begin < end:
            tail = min(max(cut.tail, begin), end)
            found.append(Part(shard=cut.shard, begin=begin, tail=tail, end=end))
    return found
