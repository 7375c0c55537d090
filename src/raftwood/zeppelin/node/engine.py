"""A partition's storage engine: the layout of its keys, values and state, and all that changes
them.

    \\x00 state                      how far the engine has got (`EngineState`)
    \\x01 sequence                   the origin of a record (`Origins`)
    \\x02 time place                 a key that ends then stands at a place below (big-endian ms)
    \\x03 hash place                 some of all keys, by chance: a way to any key (`random_key`)
    \\x10 key                        a key without a tag
    \\x11 tag \\x00\\x01 key           a key with a tag, so that keys of one tag are neighbours

A tag's own zero bytes are followed by \\xff, which keeps the two bytes behind it unique. A value is
\\x00 and the data, or \\x01, when it expires (milliseconds since 1970) and the data.
"""

import random
from collections import Counter, deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import islice
from struct import Struct
from typing import Final, TypeAlias

import msgspec
from msgspec.structs import replace
from xxhash import xxh3_64_intdigest

from raftwood.base.errors import StoreDamaged
from raftwood.base.seams import Delete, DeleteRange, KvEngine, Mutation, Put
from raftwood.base.versions import decode_versioned
from raftwood.zeppelin.records import BinlogPosition, BinlogRecord, EpochStart, KeyWrite, Value
from raftwood.zeppelin.slots import slot_of, tag_of

STATE_KEY: Final = b"\x00state"
ORIGINS_START: Final = b"\x01"
ORIGINS_END: Final = b"\x02"
ENDINGS_START: Final = b"\x02"
ENDINGS_END: Final = b"\x03"
LANDMARKS_START: Final = b"\x03"
LANDMARKS_END: Final = b"\x04"
DATA_START: Final = b"\x10"
"""All keys of clients are from here on, up to `DATA_END`."""
DATA_END: Final = b"\x12"

_PLAIN: Final = b"\x10"
_TAGGED: Final = b"\x11"
_TAG_END: Final = b"\x00\x01"
LASTS: Final = b"\x00"
"""First byte of a value that never expires."""
_EXPIRES: Final = Struct("<BQ")
_TIME_BYTES: Final = 8
_LANDMARKS: Final = 32
"""One key in this many is a landmark."""


def engine_key(key: bytes) -> bytes:
    """Returns the place of a client's key in the engine."""
    if b"{" in key and (tag := tag_of(key)) is not None:
        return _tag_start(tag) + key
    return _PLAIN + key


def engine_keys(keys: Iterable[bytes]) -> list[bytes]:
    """Like `engine_key`, for many keys: most have no tag, or that of the key before."""
    places = []
    tagged = start = b""
    for key in keys:
        if b"{" not in key:
            places.append(_PLAIN + key)
        elif tagged and key.startswith(tagged):
            places.append(start + key)
        else:
            place = engine_key(key)
            places.append(place)
            tagged, start = key[: key.find(b"}", key.find(b"{")) + 1], place[: -len(key)]
    return places


def key_of(stored: bytes) -> bytes:
    """Returns the client's key at a place of the engine."""
    if stored[:1] == _PLAIN:
        return stored[1:]
    end = stored.find(_TAG_END, 1)
    if stored[:1] != _TAGGED or end < 0:
        raise StoreDamaged(f"{stored[:64]!r} is no key of a partition: restore it from a replica")
    return stored[end + len(_TAG_END) :]


def ending(expires_ms: int, place: bytes) -> bytes:
    """Returns where the engine notes that the key at a place expires."""
    return ENDINGS_START + expires_ms.to_bytes(_TIME_BYTES, "big") + place


def endings_until(now_ms: int) -> bytes:
    """Returns the place behind all keys that have expired."""
    return ending(now_ms + 1, b"")


def ending_of(stored: bytes) -> tuple[int, bytes]:
    """Returns when a key expires, and its place."""
    head = len(ENDINGS_START) + _TIME_BYTES
    return int.from_bytes(stored[len(ENDINGS_START) : head], "big"), stored[head:]


def landmark(place: bytes) -> bytes | None:
    """Returns where a place stands among the landmarks; None: it is none."""
    digest = xxh3_64_intdigest(place)
    return None if digest % _LANDMARKS else LANDMARKS_START + digest.to_bytes(8, "big") + place


def place_of_landmark(stored: bytes) -> bytes:
    return stored[len(LANDMARKS_START) + 8 :]


def expires_of(stored: bytes) -> int:
    """Returns when a value expires; 0: never."""
    return 0 if stored[:1] == LASTS else decode_value(stored).expires_ms


def range_of_tag(tag: bytes) -> tuple[bytes, bytes]:
    """Returns where the keys of a tag begin in the engine, and where they end."""
    start = _tag_start(tag)
    return start, start[:-1] + b"\x02"


def _tag_start(tag: bytes) -> bytes:
    return _TAGGED + tag.replace(b"\x00", b"\x00\xff") + _TAG_END


def encode_value(data: bytes, expires_ms: int) -> bytes:
    return _EXPIRES.pack(1, expires_ms) + data if expires_ms else LASTS + data


def decode_value(stored: bytes) -> Value:
    if stored[:1] == LASTS:
        return Value(stored[1:])
    if len(stored) < _EXPIRES.size or stored[0] != 1:
        raise StoreDamaged(
            f"a value of {len(stored)} bytes does not begin as values do: restore the partition "
            "from a replica"
        )
    return Value(stored[_EXPIRES.size :], _EXPIRES.unpack_from(stored)[1])


# `EngineState`: how far a partition's engine has got. Part of every batch, so that state and keys
# are of one moment.

VERSION: Final = 1


class EngineState(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """What an engine holds."""

    version: int = VERSION
    sequence: int = 0
    """Sequence of the last record in it."""
    epochs: tuple[EpochStart, ...] = ()
    """Epochs up to that record, in order."""
    repairing: BinlogPosition | None = None
    """Some keys are ahead of the record: from this position on they are of one moment again."""
    flushed: int = 0
    """Sequence of the last flush in it."""
    slots: tuple[int, int] | None = None
    """The range of slots whose keys are all here; others may be removed. None: none ever were."""
    is_trimmed: bool = False
    """The engine has no keys of other slots."""
    keys: int = 0
    """Number of keys before `counted_to`, in all slots, with expired ones. Counted keys that expire
    are among the endings, counted landmarks among the landmarks."""
    counted_to: bytes = b""
    """Empty: nothing was counted yet. Release 0.1.0 counts nothing, and leaves this out."""

    @property
    def epoch(self) -> int:
        return self.epochs[-1].epoch if self.epochs else 0

    def after(self, record: BinlogRecord) -> "EngineState":
        """Returns the state once a further record is in the engine."""
        repairing = self.repairing
        if repairing is not None and has_passed(repairing, record.epoch, record.sequence):
            repairing = None
        return EngineState(
            sequence=record.sequence,
            epochs=with_epoch(self.epochs, record.epoch, record.sequence),
            repairing=repairing,
            flushed=record.sequence if record.flushes else self.flushed,
            slots=self.slots,
            is_trimmed=self.is_trimmed,
            keys=self.keys,
            counted_to=self.counted_to,
        )

    def has_all_of(self, slots: range) -> bool:
        """Whether the engine has all keys of these slots that its records gave it."""
        return self.slots is None or (self.slots[0] <= slots.start and slots.stop <= self.slots[1])

    def is_trimmed_to(self, slots: range) -> bool:
        """Whether the engine has the keys of these slots, and no others."""
        return self.is_trimmed and self.slots == (slots.start, slots.stop)


LOST: Final = BinlogPosition((1 << 63) - 1, (1 << 63) - 1)
"""`repairing` of a partition whose data was damaged. No binlog ever gets there, so only a whole
copy of its master's repairs it; until then it neither leads nor counts."""


def has_passed(position: BinlogPosition, epoch: int, sequence: int) -> bool:
    """Whether a binlog that ends there holds the position, or its replacement."""
    return epoch >= position.epoch and sequence >= position.sequence


def with_epoch(epochs: tuple[EpochStart, ...], epoch: int, sequence: int) -> tuple[EpochStart, ...]:
    """Returns the epochs of a binlog with one more record."""
    if epochs and epochs[-1].epoch == epoch:
        return epochs
    return (*epochs, EpochStart(epoch, sequence))


def epochs_to(epochs: tuple[EpochStart, ...], sequence: int) -> tuple[EpochStart, ...]:
    """Returns the epochs of the records up to a sequence."""
    return tuple(each for each in epochs if each.sequence <= sequence)


def epochs_from(epochs: tuple[EpochStart, ...], sequence: int) -> tuple[EpochStart, ...]:
    """Returns the epochs of the records from a sequence on."""
    later = [each for each in epochs if each.sequence > sequence]
    return epochs[len(epochs) - len(later) - 1 :] if len(later) < len(epochs) else epochs


_encoder = msgspec.msgpack.Encoder()


def encode_state(state: EngineState) -> bytes:
    if not state.counted_to:  # as release 0.1.0 wrote it
        return _encoder.encode(msgspec.structs.astuple(state)[:-2])
    return _encoder.encode(state)


def decode_state(data: bytes) -> EngineState:
    return decode_versioned(
        data,
        EngineState,
        version=VERSION,
        name="the state of a partition's engine",
        remedy="restore the partition from a replica",
    )


# Requests that a partition has executed already: (producer, number) → its record.
#
# Kept: those whose records are in the binlog, up to a bounded number of the latest. Of older ones,
# the last of each producer: a producer that writes little may retry late and is recognized, however
# much others wrote meanwhile. The engine holds them beside the keys, so a copy of it has them too.

Origin: TypeAlias = tuple[bytes, int]
ORIGINS_MAX: Final = 100_000
"""Bound on the latest ones, and on the older ones."""
KEPT_OF_PRODUCER: Final = 64
PURGED_MAX: Final = 10_000
"""Bound on older ones whose records are purged."""
_decoder = msgspec.msgpack.Decoder(tuple[bytes, int])


class Origins:
    """The executed requests in memory; the functions below mirror them in the engine."""

    def __init__(self) -> None:
        self._sequences: dict[Origin, int] = {}
        self._older: deque[tuple[int, Origin]] = deque()
        self._latest: deque[tuple[int, Origin]] = deque()
        self._last: dict[bytes, int] = {}
        """The largest number of each producer; it may be forgotten by now."""
        self._known: Counter[bytes] = Counter()
        """How many entries each producer has."""
        self._of_producer: Counter[bytes] = Counter()
        """How many of the latest entries each producer has."""

    @classmethod
    def load(cls, engine: KvEngine) -> "Origins":
        origins = cls()
        for key, value in engine.scan(ORIGINS_START, ORIGINS_END):
            try:
                origins.add(_decoder.decode(value), int.from_bytes(key[1:], "big"))
            except (msgspec.MsgspecError, ValueError) as error:
                raise StoreDamaged(
                    f"the origin of a record cannot be read ({error}): restore the partition from "
                    "a replica"
                ) from error
        return origins

    def sequence_of(self, origin: Origin) -> int | None:
        return self._sequences.get(origin)

    def last_number(self, producer: bytes) -> int | None:
        """Returns the largest known number of a producer; None if there is none."""
        last = self._last.get(producer)
        if last is not None and (producer, last) not in self._sequences:
            # The producer's last number is forgotten, which is rare: search for the largest one
            # left.
            last = max(number for name, number in self._sequences if name == producer)
            self._last[producer] = last
        return last

    def add(self, origin: Origin, sequence: int) -> None:
        producer, number = origin
        if origin not in self._sequences:
            self._known[producer] += 1
        self._sequences[origin] = sequence
        if number >= self._last.get(producer, number):
            self._last[producer] = number
        self._latest.append((sequence, origin))
        self._of_producer[origin[0]] += 1
        if len(self._latest) > ORIGINS_MAX:
            self._grow_old()

    def _grow_old(self) -> None:
        """Moves the oldest of the latest to the older ones; drops it if its producer has enough."""
        sequence, origin = self._latest.popleft()
        if self._one_less(origin[0]) >= KEPT_OF_PRODUCER:
            self._forget(sequence, origin)
            return
        self._older.append((sequence, origin))
        if len(self._older) > ORIGINS_MAX:
            self._forget(*self._older.popleft())

    def _one_less(self, producer: bytes) -> int:
        left = self._of_producer[producer] = self._of_producer[producer] - 1
        if not left:
            del self._of_producer[producer]
        return left

    def forget_before(self, sequence: int) -> dict[int, Origin] | None:
        """Drops entries of purged records; returns those that stay, None if none was dropped."""
        before = len(self._older) + len(self._latest)
        while self._latest and self._latest[0][0] < sequence:
            self._grow_old()
        while len(self._older) > PURGED_MAX and self._older[0][0] < sequence:
            self._forget(*self._older.popleft())
        if len(self._older) + len(self._latest) == before:
            return None
        return {place: origin for place, origin in self._older if place < sequence}

    def forget_after(self, sequence: int) -> None:
        """Drops entries behind a sequence: their records were cut."""
        while self._latest and self._latest[-1][0] > sequence:
            self._one_less(self._latest[-1][1][0])
            self._forget(*self._latest.pop())
        while self._older and self._older[-1][0] > sequence:
            self._forget(*self._older.pop())

    def _forget(self, sequence: int, origin: Origin) -> None:
        if self._sequences.get(origin) == sequence:
            del self._sequences[origin]
            producer = origin[0]
            self._known[producer] -= 1
            if not self._known[producer]:
                del self._known[producer], self._last[producer]


def mutation_of(origin: Origin, sequence: int) -> Mutation:
    """Returns the mutation that notes a record's origin."""
    return Put(_key(sequence), _encoder.encode(origin))


def mutations_before(sequence: int, kept: Mapping[int, Origin]) -> list[Mutation]:
    """Returns mutations that remove the origins before a sequence, except the kept ones."""
    puts = [mutation_of(origin, place) for place, origin in kept.items()]
    return [DeleteRange(ORIGINS_START, _key(sequence)), *puts]


def mutation_after(sequence: int) -> Mutation:
    return DeleteRange(_key(sequence + 1), ORIGINS_END)


def _key(sequence: int) -> bytes:
    return ORIGINS_START + sequence.to_bytes(8, "big")


# A partition's storage engine: records enter it in batches, each with how far it has got.
#
# A batch also holds the number of keys, when keys expire, and the landmarks. To keep them exact,
# also after a replay, the engine looks up what each key had before. On a table larger than memory
# each look-up may read the disk. So the caller of many writes calls `look_up` and `fetch` first,
# which read off the loop. An engine of release 0.1.0 has no counts; it is counted bit by bit, from
# its beginning on, and keys behind that place have no bookkeeping meanwhile.
#
# It only gets records whose binlog is synced, so it is never ahead of the binlog that a crash
# leaves; whatever it lacks after a crash is rolled forward from there.

NEVER_MS: Final = 1 << 63
_WINDOW: Final = 512
"""A landmark stands for this many keys behind it: about sixteen landmarks lead to each key."""
_WINDOW_BYTES: Final = 1 << 20
_COUNTED_BYTES: Final = 4 << 20
"""Bytes of values that are read in one turn of the loop."""
_FETCHED_FIRST: Final = 16
_FETCHED_MAX: Final = 512
"""Values fetched at a time, as long as they are small."""


class PartitionEngine:
    """An engine, its state, and how much of that is surely on the disk."""

    def __init__(self, engine: KvEngine) -> None:
        self._engine = engine
        stored = engine.get(STATE_KEY)
        self.state = _EMPTY if stored is None else decode_state(stored)
        self.next_ending_ms = 0
        """No counted key expires before."""
        # A newly opened engine holds what its files hold.
        self.durable_sequence = self.state.sequence
        self.unflushed_bytes = 0
        self.damage: StoreDamaged | None = None
        """The damage found since it was opened."""
        # Key → its running reads off the loop; each collects the values replaced meanwhile.
        self._readers: dict[bytes, list[dict[bytes, Value | None]]] = {}
        # Place → expiry of its value (0: never), or None without a value: looked up for the next
        # writes. Any write makes it void.
        self._before: dict[bytes, int | None] = {}
        self._write_count = 0

    @property
    def kv(self) -> KvEngine:
        return self._engine

    def get(self, key: bytes) -> Value | None:
        try:
            stored = self._engine.get(engine_key(key))
            return None if stored is None else decode_value(stored)
        except StoreDamaged as error:
            self.damage = error
            raise

    async def multi_get(self, keys: Sequence[bytes]) -> list[tuple[Value | None, bool]]:
        """Returns the values as of the call, each with whether the engine still has it."""
        replaced: dict[bytes, Value | None] = {}
        for key in keys:
            self._readers.setdefault(key, []).append(replaced)
        try:
            found = await self._engine.multi_get([engine_key(key) for key in keys])
        except StoreDamaged as error:
            self.damage = error
            raise
        finally:
            for key in keys:
                readers = self._readers[key]
                readers.pop(next(i for i, each in enumerate(readers) if each is replaced))
                if not readers:
                    del self._readers[key]
        values: list[tuple[Value | None, bool]] = []
        for key, stored in zip(keys, found, strict=True):
            if key in replaced:
                values.append((replaced[key], False))
            else:
                values.append((None if stored is None else decode_value(stored), True))
        return values

    def look_up(self, keys: Iterable[bytes]) -> list[bytes]:
        """Looks up in memory what the keys of the next writes have. Returns the places that are not
        in memory, for `fetch`.
        """
        before, counted_to = self._before, self.state.counted_to
        get_cached = self._engine.get_cached
        cold: list[bytes] = []
        for place in engine_keys(dict.fromkeys(keys)):
            if place < counted_to and place not in before:
                is_known, stored = get_cached(place)
                if is_known:
                    before[place] = None if stored is None else expires_of(stored)
                else:
                    cold.append(place)
        return cold

    async def fetch(self, places: Sequence[bytes]) -> None:
        """Looks up these places off the loop; any write meanwhile ends it."""
        at, count, write_count = 0, _FETCHED_FIRST, self._write_count
        while at < len(places):
            chosen = places[at : at + count]
            try:
                found = await self._engine.multi_get(chosen)
            except StoreDamaged as error:
                self.damage = error
                raise
            if write_count != self._write_count:
                return
            at += len(chosen)
            for place, stored in zip(chosen, found, strict=True):
                self._before[place] = None if stored is None else expires_of(stored)
            # Their sizes are known only after reading.
            size = sum(len(stored) for stored in found if stored is not None)
            count = max(1, min(_FETCHED_MAX, _COUNTED_BYTES * len(chosen) // (size or 1)))

    def _forget_looked_up(self) -> dict[bytes, int | None]:
        """Takes the looked-up values, which a write is about to make stale."""
        before, self._before = self._before, {}
        self._write_count += 1
        return before

    def scan(self, start: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        return self._engine.scan(start, end)

    def apply(self, records: Sequence[BinlogRecord], *, now_ms: int) -> Mapping[bytes, KeyWrite]:
        """Applies consecutive records in one step; returns the latest write of each key."""
        latest: dict[bytes, KeyWrite] = {}
        mutations: list[Mutation] = []
        flushes = False
        state = self.state
        epoch = state.epoch
        for record in records:
            if record.flushes:
                flushes = True
                latest.clear()
            for write in record.writes:
                latest[write.key] = write
            if record.origin is not None:
                mutations.append(mutation_of(record.origin, record.sequence))
            if record.epoch != epoch or record.flushes:
                state = state.after(record)
                epoch = record.epoch
        if flushes:
            mutations.append(DeleteRange(DATA_START, DATA_END))
        state = state.after(records[-1])
        self._write(latest, mutations, state, now_ms=now_ms, replaces_all=flushes)
        return latest

    async def rewind(self, after: int, values: Sequence[KeyWrite], until: BinlogPosition) -> None:
        """Goes back to a record, durably; the keys of later records get values from the master.

        These values may be newer than the record; from `until` on the keys are of one moment again.
        """
        latest = {write.key: write for write in values}
        await self.fetch(self.look_up(latest))
        state = replace(
            self.state,
            sequence=after,
            epochs=epochs_to(self.state.epochs, after),
            repairing=until,
        )
        self._write(latest, [mutation_after(after)], state, now_ms=0, replaces_all=False)
        self.durable_sequence = min(self.durable_sequence, after)
        await self.flush()

    async def take_over(self, sequence: int, epochs: Sequence[EpochStart]) -> None:
        """Checks a copy of another replica's engine, and sets its state, durably."""
        if self.state.sequence != sequence:
            raise StoreDamaged(
                f"the copy of a partition holds records up to {self.state.sequence}, not "
                f"{sequence}: make it again"
            )
        state = replace(self.state, epochs=tuple(epochs), repairing=None)
        self._write({}, [], state, now_ms=0, replaces_all=False)
        await self.flush()

    async def split_off(self, sequence: int, slots: range) -> None:
        """Becomes the engine of a partition with these slots and the records up to a sequence;
        durable.

        Called on a copy: the original may hold more records, of other slots.
        """
        state = replace(
            self.state,
            sequence=sequence,
            epochs=epochs_to(self.state.epochs, sequence),
            slots=(slots.start, slots.stop),
            is_trimmed=False,
        )
        self._write({}, [mutation_after(sequence)], state, now_ms=0, replaces_all=False)
        self.durable_sequence = min(self.durable_sequence, sequence)
        await self.flush()

    async def begin_lacking(self, until: BinlogPosition) -> None:
        """Becomes an empty engine that lacks everything before a position, durably."""
        self._write({}, [], replace(_EMPTY, repairing=until), now_ms=0, replaces_all=False)
        await self.flush()

    @property
    def is_counted(self) -> bool:
        """Whether all keys are counted, so that expired ones can be found."""
        return self.state.counted_to == DATA_END

    def count_some(self, pairs_max: int) -> None:
        """Continues the count by a bounded number of pairs."""
        state = self.state
        mutations: list[Mutation] = []
        if not state.counted_to:  # entries may be left from a time when they were not maintained
            mutations.append(DeleteRange(ENDINGS_START, LANDMARKS_END))
        keys, size = state.keys if state.counted_to else 0, 0
        counted_to, first_ms = DATA_END, NEVER_MS
        pairs = self._engine.scan(state.counted_to or DATA_START, DATA_END)
        for place, stored in islice(pairs, pairs_max + 1):
            if pairs_max == 0 or size > _COUNTED_BYTES:
                counted_to = place
                break
            pairs_max -= 1
            size += len(stored)
            keys += 1
            if expires_ms := expires_of(stored):
                mutations.append(Put(ending(expires_ms, place), b""))
                first_ms = min(first_ms, expires_ms)
            if (mark := landmark(place)) is not None:
                mutations.append(Put(mark, b""))
        self._put(mutations, replace(state, keys=keys, counted_to=counted_to))
        self.next_ending_ms = min(self.next_ending_ms, first_ms)

    def ended(self, start: bytes, end: bytes, *, count: int) -> list[bytes]:
        """Returns some of the endings between two of them."""
        return [stored for stored, _ in islice(self._engine.scan(start, end), count)]

    def note_next_ending(self) -> None:
        """Looks up when the first key expires."""
        first = next(self._engine.scan(ENDINGS_START, ENDINGS_END), None)
        self.next_ending_ms = NEVER_MS if first is None else ending_of(first[0])[0]

    def random_key(self, source: random.Random) -> bytes | None:
        """Returns a key, each about as likely: one of some keys behind a landmark, which is chosen
        by hash. None if there are no keys.
        """
        begin = DATA_START
        for start in (LANDMARKS_START + source.randbytes(8), LANDMARKS_START):
            if (found := next(self._engine.scan(start, LANDMARKS_END), None)) is not None:
                begin = place_of_landmark(found[0])
                break
        left = source.randrange(max(1, min(_WINDOW, self.state.keys)))
        passed: list[bytes] = []
        size = 0
        for start, end in ((begin, DATA_END), (DATA_START, begin)):
            for place, stored in self._engine.scan(start, end):
                passed.append(place)
                size += len(stored)
                if not left or size > _WINDOW_BYTES:
                    # Do not read past too many large values: it would block the loop.
                    return key_of(source.choice(passed) if left else place)
                left -= 1
        return key_of(source.choice(passed)) if passed else None

    def own(self, slots: range) -> None:
        """Marks keys of other slots as garbage; stored with the next batch."""
        bounds = (slots.start, slots.stop)
        if self.state.has_all_of(slots) and self.state.slots != bounds:
            self.state = replace(self.state, slots=bounds, is_trimmed=False)

    def trim(self, slots: range, *, start: bytes, pairs_max: int) -> bytes | None:
        """Removes keys of other slots, among a bounded number of pairs. Returns where to continue;
        None at the end.
        """
        rubbish: list[bytes] = []
        mutations: list[Mutation] = []
        keys = self.state.keys
        go_on: bytes | None = None
        for place, stored in islice(self._engine.scan(start, DATA_END), pairs_max + 1):
            if pairs_max == 0:
                go_on = place
                break
            pairs_max -= 1
            if slot_of(key_of(place)) not in slots:
                rubbish.append(place)
                mutations.append(Delete(place))
                if place < self.state.counted_to:
                    keys -= 1
                    mutations += _no_longer(place, expires_of(stored))
        if self._readers:
            self._keep_for_readers([key_of(place) for place in rubbish])
        self._forget_looked_up()
        self._put(mutations, replace(self.state, is_trimmed=go_on is None, keys=keys))
        return go_on

    def forget_epochs(self, sequence: int) -> None:
        """Forgets epochs that ended before a sequence; stored with the next batch."""
        epochs = epochs_from(self.state.epochs, sequence)
        self.state = replace(self.state, epochs=epochs)

    def forget_origins(self, before: int, kept: Mapping[int, Origin]) -> None:
        """Removes the origins of records below a sequence, except the kept ones."""
        self._engine.write_batch(mutations_before(before, kept))

    def _write(
        self,
        latest: Mapping[bytes, KeyWrite],
        mutations: list[Mutation],
        state: EngineState,
        *,
        now_ms: int,
        replaces_all: bool,
    ) -> None:
        if self._readers:
            self._keep_for_readers(tuple(self._readers) if replaces_all else tuple(latest))
        if replaces_all:
            mutations.append(DeleteRange(ENDINGS_START, LANDMARKS_END))
            state = replace(state, keys=0, counted_to=DATA_END)
        looked_up = self._forget_looked_up()
        written_bytes = 0
        keys, counted_to, first_ms = state.keys, state.counted_to, self.next_ending_ms
        for place, write in zip(engine_keys(latest), latest.values(), strict=True):
            data, expires_ms = write.data, write.expires_ms
            is_there = data is not None and not 0 < expires_ms <= now_ms
            if place < counted_to:
                if replaces_all:
                    ended_ms = None
                elif place in looked_up:
                    ended_ms = looked_up[place]
                else:
                    ended_ms = self._stored_end(place)
                if is_there != (ended_ms is not None):
                    keys += 1 if is_there else -1
                    if (mark := landmark(place)) is not None:
                        mutations.append(Put(mark, b"") if is_there else Delete(mark))
                if ended_ms and not (is_there and ended_ms == expires_ms):
                    mutations.append(Delete(ending(ended_ms, place)))
                if is_there and expires_ms:
                    mutations.append(Put(ending(expires_ms, place), b""))
                    first_ms = min(first_ms, expires_ms)
            if is_there:
                assert data is not None
                stored = encode_value(data, expires_ms) if expires_ms else LASTS + data
                mutations.append(Put(place, stored))
                written_bytes += len(stored)
            else:
                mutations.append(Delete(place))
        self._put(mutations, state if keys == state.keys else replace(state, keys=keys))
        self.next_ending_ms = first_ms
        self.unflushed_bytes += written_bytes

    def _stored_end(self, place: bytes) -> int | None:
        """Returns when the value at a place expires (0: never); None if there is no value."""
        try:
            stored = self._engine.get(place)
        except StoreDamaged as error:
            self.damage = error
            raise
        return None if stored is None else expires_of(stored)

    def _put(self, mutations: list[Mutation], state: EngineState) -> None:
        """Writes the mutations and the new state in one step."""
        mutations.append(Put(STATE_KEY, encode_state(state)))
        try:
            self._engine.write_batch(mutations)
        except StoreDamaged as error:
            self.damage = error
            raise
        self.state = state

    def _keep_for_readers(self, keys: Sequence[bytes]) -> None:
        """Saves values about to be replaced for the running reads of their keys."""
        for key in keys:
            readers = self._readers.get(key)
            if readers:
                value = self.get(key)
                for replaced in readers:
                    replaced.setdefault(key, value)

    async def flush(self) -> None:
        """Returns once everything in the engine is on the disk."""
        sequence = self.state.sequence
        self.unflushed_bytes = 0
        await self._engine.flush()
        self.durable_sequence = max(self.durable_sequence, sequence)

    async def checkpoint(self, folder: str) -> None:
        await self._engine.checkpoint(folder)

    async def close(self) -> None:
        await self._engine.close()


_EMPTY: Final = EngineState(counted_to=DATA_END)
"""State of an empty engine, which has nothing to count."""


def _no_longer(place: bytes, expires_ms: int) -> list[Mutation]:
    """Returns the mutations that go with deleting a counted key, besides the pair itself."""
    mark = landmark(place)
    places = [ending(expires_ms, place)] * bool(expires_ms) + [mark] * (mark is not None)
    return [Delete(each) for each in places if each is not None]
