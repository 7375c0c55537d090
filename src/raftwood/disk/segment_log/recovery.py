"""Reads a whole log back from its folder: its records, its end, its damages.

`inspect` only reads; `recover` also puts the folder right for a writer. Both walk the flushes in
order until one is not whole. If a later flush, or the HORIZON file, says that this place had been
synced, that is damage; else it is the torn tail of the last writes, none of which was acked, and is
cut off. Cutting can be interrupted at any point and begun again.

To take damage for a torn tail loses acked records: a store that votes without them can elect a
leader that lacks them. To take a torn tail for damage keeps a healthy store from starting after
every power loss. Tests: test_segment_log::test_a_torn_tail_is_cut_off, test_log_horizon, and every
crash image of `tests/assurance/disk/test_crash_images.py`; planted bug "an accepted torn tail"
"""

from collections.abc import Callable

import msgspec

from raftwood.base import files as seam
from raftwood.base.errors import StoreDamaged
from raftwood.base.files import Buffer, Files, perform
from raftwood.disk.segment_log.format import (
    FLAG_HORIZON,
    FLUSH_HEADER_BYTES,
    MARK_COUNT,
    SEGMENT_HEADER_BYTES,
    FlushHeader,
    decode_flush_header,
    decode_segment_header,
    offset_of,
    position_of,
    seed_of_log,
    segment_of,
)
from raftwood.disk.segment_log.horizon import Horizon, HorizonFile, horizon_path, load_horizon
from raftwood.disk.segment_log.index import GroupIndex, LiveBytes
from raftwood.disk.segment_log.scan import (
    BadFlush,
    Fields,
    IndexBuilder,
    ScannedRecord,
    flush_at,
    headers_after,
    last_header,
    records_of,
    whole_flushes,
)
from raftwood.disk.segment_log.segments import PREPARING, segment_number, segment_path

REMEDY = "do not use this copy; 'raftwood store check FOLDER' lists all that is wrong"
"""The log's owner adds how to repair it."""


class Damage(msgspec.Struct, frozen=True):
    """One place where synced data is bad."""

    path: str
    offset: int | None
    """None if the whole file is damaged."""
    reason: str


class Inspection(msgspec.Struct):
    """The contents of a log's folder."""

    names: list[str]
    log_id: bytes | None = None
    """None if the log has no segment yet."""
    oldest: int = 1
    removable_below: int = 0
    """Segments with lower numbers were declared unneeded by a flush that is not cut off."""
    end: int = 0
    """Where the last whole flush ends; 0 if there is none."""
    synced: int = 0
    """The position up to which the flushes say that all was synced."""
    used_bytes: dict[int, int] = msgspec.field(default_factory=dict)
    """Segment number → where its last whole flush ends."""
    record_bytes: dict[int, int] = msgspec.field(default_factory=dict)
    """Segment number → bytes of all records in it."""
    flush_count: int = 0
    horizon: Horizon | None = None
    """The contents of the HORIZON file; None if there is none that can be read."""
    damages: list[Damage] = msgspec.field(default_factory=list)


class Recovered(msgspec.Struct):
    """A log that is ready to be written."""

    log_id: bytes | None
    end: int
    next_segment: int
    used_bytes: dict[int, int]
    record_bytes: dict[int, int]
    groups: dict[int, GroupIndex]
    live: LiveBytes
    horizon: Horizon | None
    was_closed: bool
    """Whether the log is new, or its last process closed it, with all its contents here."""


async def recover(files: Files, folder: str) -> Recovered:
    """Rebuilds the index and cuts the torn tail; `StoreDamaged` if synced data is bad."""
    replay = IndexBuilder()
    found = await _inspected(files, folder, replay.take)
    if found.damages:
        raise damage_error(found.damages)
    try:
        groups, live = replay.finish()
    except StoreDamaged as error:
        raise StoreDamaged(f"{folder}: {error.message}; {REMEDY}") from None
    next_segment = max(found.used_bytes, default=found.oldest - 1) + 1
    horizon = await _without_unused(files, folder, found, next_segment)
    await _cut_tail(files, folder, found, next_segment)
    return Recovered(
        log_id=found.log_id,
        end=found.end,
        next_segment=next_segment,
        used_bytes=found.used_bytes,
        record_bytes=found.record_bytes,
        groups=groups,
        live=live,
        horizon=horizon,
        was_closed=found.log_id is None
        or (horizon is not None and horizon.is_closed and horizon.synced == found.end),
    )


async def _without_unused(
    files: Files, folder: str, found: Inspection, next_segment: int
) -> Horizon | None:
    """Removes segments that were begun and hold no whole flush from the horizon, before they go.

    Several may have been written without a sync. If they were removed first, a crash would leave a
    horizon that names a missing segment, and the next start would call that damage.
    Test: test_log_horizon::test_segments_that_were_begun_and_never_synced_may_go
    """
    horizon = found.horizon
    if horizon is None or horizon.begun <= next_segment:
        return horizon
    file = HorizonFile(folder, log_id=horizon.log_id, last=horizon)
    await perform(
        files,
        *file.opening(synced=horizon.synced, begun=next_segment),
        seam.Close(file.path),
    )
    return await load_horizon(files, folder)


def damage_error(damages: list[Damage]) -> StoreDamaged:
    places = "; ".join(f"{d.path} at offset {d.offset}: {d.reason}" for d in damages[:5])
    return StoreDamaged(f"{places}: this was synced before and is bad now; {REMEDY}")


async def inspect(
    files: Files, folder: str, on_record: Callable[[ScannedRecord], None]
) -> Inspection:
    """Walks all flushes of the log in order; changes nothing.

    After damage the walk goes on at the next whole flush, so that all damage is found.
    """

    def take(records: list[Fields]) -> None:
        for fields in records:
            on_record(ScannedRecord(*fields))

    return await _inspected(files, folder, take)


async def _inspected(files: Files, folder: str, take: Callable[[list[Fields]], None]) -> Inspection:
    (names,) = await perform(files, seam.ListDirectory(folder))
    found = Inspection(names=names or [])
    found.horizon = await load_horizon(files, folder)
    numbers = [n for name in found.names if (n := segment_number(name)) is not None]
    if numbers:
        await _Walk(files, folder, found, numbers, take).run()
    elif found.horizon is not None:
        path = segment_path(folder, found.horizon.begun)
        found.damages.append(Damage(path, 0, "the log has lost all of its segments"))
    return found


class _Walk:
    """One pass over a log's flushes; holds at most two segments in memory."""

    def __init__(
        self,
        files: Files,
        folder: str,
        found: Inspection,
        numbers: list[int],
        take: Callable[[list[Fields]], None],
    ) -> None:
        self._files = files
        self._folder = folder
        self._found = found
        self._numbers = numbers
        self._take = take
        self._good: set[int] = set()
        self._loaded: dict[int, Buffer] = {}
        self._log_seed = 0

    async def run(self) -> None:
        await self._read_newest()
        found = self._found
        place = position_of(found.oldest, SEGMENT_HEADER_BYTES)
        previous_end: int | None = None
        while True:
            if await self._take_flushes(place, previous_end):
                place = previous_end = found.end
            following = position_of(segment_of(place) + 1, SEGMENT_HEADER_BYTES)
            if previous_end == place and await self._goes_on_at(following, previous_end):
                place = following
                continue
            # The place where the whole flushes end. Nothing behind `synced` was acked, so bad bytes
            # there are a torn tail; before it they are damage. A file that was cut short is damage
            # anywhere, because no crash makes a segment shorter.
            path = segment_path(self._folder, segment_of(place))
            if place >= found.synced:
                if await self._is_cut_off(place):
                    reason = "the file ends within a flush, and was longer when it was written"
                    found.damages.append(Damage(path, offset_of(place), reason))
                return
            reason = await self._why_not_whole(place, previous_end)
            found.damages.append(Damage(path, offset_of(place), reason))
            next_whole = await self._next_whole(place)
            if next_whole is None:
                return
            place, previous_end = next_whole, None

    async def _read_newest(self) -> None:
        """Reads from the newest flush the oldest segment still needed, and how far all is synced.

        Both only grow, so the last flush of the newest segment that has one knows best. A segment
        is unlinked only after a durable flush has declared it unneeded, so even an unsynced flush
        is right.
        """
        found = self._found
        good = [number for number in self._numbers if await self._header_is_good(number)]
        found.oldest = self._numbers[0]
        for number in reversed(good):
            header = await self._last_header_in(number)
            if header is not None:
                found.oldest, found.synced = header.oldest_segment, header.synced
                self._take_horizon(is_needed=bool(header.flags & FLAG_HORIZON))
                break
        else:
            self._take_horizon(is_needed=False)
            if found.horizon is not None:
                # None has a flush: those left may have been prepared behind others that are gone.
                # A segment that the horizon calls durable goes only after a later flush allows it.
                last = segment_of(found.synced) if found.synced else found.horizon.begun
                found.oldest = min(found.oldest, last)
        # Flushes cannot tell that the segment behind the last of them is missing: the horizon names
        # it. Tests: test_segment_log::test_a_missing_segment_in_the_middle_is_refused,
        # test_log_horizon::test_after_a_kill_the_loss_of_the_newest_segment_is_noticed
        newest = max(segment_of(found.synced), found.horizon.begun if found.horizon else 0)
        for number in range(found.oldest, newest + 1):
            if number not in self._numbers:
                path = segment_path(self._folder, number)
                found.damages.append(Damage(path, 0, "the segment is missing"))

    def _take_horizon(self, *, is_needed: bool) -> None:
        """Reads from the horizon how far the log went, which missing flushes cannot say.

        If a flush says that there was a horizon, a missing one is damage: it may have been lost
        together with the flushes that it covers.
        Test: test_log_horizon::test_the_loss_of_the_horizon_is_noticed
        """
        found = self._found
        horizon = found.horizon
        path = horizon_path(self._folder)
        if horizon is None:
            if is_needed:
                reason = "it is missing or cannot be read, so nothing tells how far the log went"
                found.damages.append(Damage(path, 0, reason))
        elif found.log_id is not None and horizon.log_id != found.log_id:
            found.horizon = None
            reason = f"it is of log {horizon.log_id.hex()}, not of this"
            found.damages.append(Damage(path, 0, reason))
        else:
            found.synced = max(found.synced, horizon.synced)

    async def _take_flushes(self, place: int, previous_end: int | None) -> bool:
        """Takes the whole flushes that follow in a segment; returns whether there were any."""
        segment, found = segment_of(place), self._found
        data = await self._load(segment)
        if data is None:
            return False
        taken = whole_flushes(
            data, place, log_seed=self._log_seed, previous_end=previous_end, take=self._take
        )
        if not taken.flush_count:
            return False
        found.end = taken.end
        found.used_bytes[segment] = offset_of(taken.end)
        found.record_bytes[segment] = found.record_bytes.get(segment, 0) + taken.body_bytes
        found.flush_count += taken.flush_count
        found.removable_below = taken.oldest_segment
        return True

    async def _why_not_whole(self, place: int, previous_end: int | None) -> str:
        """Returns why no flush was taken at a place."""
        data = await self._load(segment_of(place))
        if data is None:
            return "the segment is missing, or its header is bad"
        header = flush_at(data, place, log_seed=self._log_seed, previous_end=previous_end)
        if isinstance(header, BadFlush):
            return header.reason
        if header.record_count == MARK_COUNT:
            return "the log ends here"
        records = records_of(data, header)
        return records.reason if isinstance(records, BadFlush) else "it was not taken"

    async def _is_cut_off(self, place: int) -> bool:
        """Whether the file's end is lost: it has its full length before anything is written.

        A torn write leaves bad bytes but never a shorter file, and cutting a torn tail leaves one
        that ends with a whole flush.
        """
        data = await self._load(segment_of(place))
        if data is None:
            return False
        offset = offset_of(place)
        if len(data) < offset + FLUSH_HEADER_BYTES:
            return any(data[offset:])
        header = decode_flush_header(data, offset, log_seed=self._log_seed)
        return (
            header is not None
            and header.position == place
            and header.end > (position_of(segment_of(place), len(data)))
        )

    async def _goes_on_at(self, place: int, previous_end: int) -> bool:
        data = await self._load(segment_of(place))
        if data is None:
            return False
        header = flush_at(data, place, log_seed=self._log_seed, previous_end=previous_end)
        return isinstance(header, FlushHeader)

    async def _next_whole(self, place: int) -> int | None:
        """Returns the start of the first whole flush after a bad one."""
        for number in range(segment_of(place), self._numbers[-1] + 1):
            offset = offset_of(place) + 1 if number == segment_of(place) else SEGMENT_HEADER_BYTES
            for header in await self._headers_in(number, offset):
                data = await self._load(number)
                assert data is not None
                if header.record_count != MARK_COUNT and not isinstance(
                    records_of(data, header), BadFlush
                ):
                    return header.position
        return None

    async def _last_header_in(self, number: int) -> FlushHeader | None:
        data = await self._load(number)
        if data is None:
            return None
        return last_header(data, segment=number, log_seed=self._log_seed)

    async def _headers_in(self, number: int, offset: int) -> list[FlushHeader]:
        data = await self._load(number)
        if data is None:
            return []
        return list(headers_after(data, segment=number, offset=offset, log_seed=self._log_seed))

    async def _header_is_good(self, number: int) -> bool:
        """A segment gets its name only after its header is durable: a bad one is damage, unless
        the segment never held anything.
        """
        path = segment_path(self._folder, number)
        (data,) = await perform(self._files, seam.Read(path, 0, SEGMENT_HEADER_BYTES))
        try:
            said, log_id = decode_segment_header(data, path=path)
            if self._found.log_id is None:
                self._found.log_id = log_id
                self._log_seed = seed_of_log(log_id)
            if said != number or log_id != self._found.log_id:
                raise StoreDamaged(f"{path} is segment {said} of log {log_id.hex()}, not of this")
        except StoreDamaged as error:
            if not await self._was_only_prepared(number):
                self._found.damages.append(Damage(path, 0, error.message))
            return False
        self._good.add(number)
        return True

    async def _was_only_prepared(self, number: int) -> bool:
        """Whether a segment is blank, and behind the last one that the horizon says was begun.

        Nothing was ever written to it, so its bad header hides nothing.
        Test: test_log_horizon::test_a_bad_segment_that_was_only_prepared_is_no_damage
        """
        horizon = self._found.horizon
        if horizon is None or number <= horizon.begun:
            return False
        path = segment_path(self._folder, number)
        (size,) = await perform(self._files, seam.Size(path))
        (data,) = await perform(self._files, seam.Read(path, SEGMENT_HEADER_BYTES, size))
        return not bytes(data).strip(b"\0")

    async def _load(self, number: int) -> Buffer | None:
        """Reads a segment; None if it is missing, or belongs to another log."""
        if number not in self._good:
            return None
        data = self._loaded.get(number)
        if data is None:
            path = segment_path(self._folder, number)
            (size,) = await perform(self._files, seam.Size(path))
            (data,) = await perform(self._files, seam.Read(path, 0, size))
            while len(self._loaded) > 1:
                del self._loaded[min(self._loaded)]
            self._loaded[number] = data
        return data


async def _cut_tail(files: Files, folder: str, found: Inspection, next_segment: int) -> None:
    """Removes everything behind the end, and segments that are no longer needed.

    The next segment stays in any case: a new one is about to take its name, and a folder that had a
    log is never seen without any segment. So does one that only a flush in the torn tail calls
    unneeded: with that flush cut off, the log would miss it. It goes at the next start.
    Test: test_log_recovery::test_a_segment_that_only_a_torn_flush_calls_unneeded_is_kept
    """
    operations: list[seam.Operation] = []
    for number, end in found.used_bytes.items():
        if number >= segment_of(found.synced):
            path = segment_path(folder, number)
            operations += (
                seam.Open(path),
                *await _written_again(files, path, _synced_in(number, found.synced), end),
                seam.Truncate(path, end),
                seam.DataSync(path),
                seam.Close(path),
            )
    # Only now, with the flushes durable that call them unneeded: recovery may have read those from
    # the page cache of a process that was killed. Test: test_log_recovery::
    # test_no_segment_is_removed_before_the_flush_that_calls_it_unneeded_is_durable
    for name in found.names:
        listed = segment_number(name)
        if name == PREPARING or (
            listed is not None and (listed < found.removable_below or listed > next_segment)
        ):
            operations.append(seam.Unlink(f"{folder}/{name}"))
    await perform(files, *operations, seam.SyncDirectory(folder))


def _synced_in(number: int, synced: int) -> int:
    return offset_of(synced) if number == segment_of(synced) else SEGMENT_HEADER_BYTES


async def _written_again(files: Files, path: str, start: int, end: int) -> list[seam.Operation]:
    """Writes bytes again that were read, but may be in the page cache alone.

    After a failed sync the kernel takes its pages for clean: another sync would succeed without
    writing them. The log would go on behind records that a power loss takes away. The same bytes
    again make the pages dirty, and a torn write of them changes nothing.
    Test: test_log_recovery::
    test_what_a_failed_sync_left_in_the_page_cache_alone_is_written_again
    """
    if start >= end:
        return []
    (data,) = await perform(files, seam.Read(path, start, end - start))
    return [seam.Write(path, start, [data])]
