"""Storage in memory as a `Sink`: places that end, batches stored once by producer and sequence.

It keeps the promises of logs (`base.seams.Log`) and of the sink over them: a place that has ended
answers what it has stored, and takes nothing more; a resumed batch is looked for from the oldest
place on.
"""

from raftwood.base.errors import InvalidInput, SequenceForgotten, Unavailable
from raftwood.clogs.errors import PlaceMoved
from raftwood.clogs.frames import ClogsMessage
from raftwood.loghub.batches import decompress
from raftwood.loghub.log_groups import decode_log_group

WINDOW = 1024


class Place:
    """One log."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.is_ended = False
        self.batches: list[ClogsMessage] = []
        self.sequences: dict[bytes, set[int]] = {}

    def append(self, message: ClogsMessage) -> None:
        known = self.sequences.setdefault(message.producer, set())
        if message.sequence in known:
            return
        if known and message.sequence <= max(known) - WINDOW:
            raise SequenceForgotten(f"sequence {message.sequence} is too old")
        if self.is_ended:
            raise PlaceMoved(f"place {self.name} takes no more")
        known.add(message.sequence)
        body = bytes(message.body)
        self.batches.append(
            ClogsMessage(
                type=message.type,
                name=message.name,
                producer=message.producer,
                sequence=message.sequence,
                count=message.count,
                raw_bytes=message.raw_bytes,
                codec=message.codec,
                body=body,
            )
        )


class MemoryStorage:
    """What all receivers of a ring store in: each file has places, one after the other."""

    def __init__(self) -> None:
        self.places: dict[str, list[Place]] = {}
        self.is_available = True

    def of(self, name: str) -> list[Place]:
        return self.places.setdefault(name, [Place(f"{name}#0")])

    def move(self, name: str) -> None:
        """The file's place ends, and another one takes over."""
        places = self.of(name)
        places[-1].is_ended = True
        places.append(Place(f"{name}#{len(places)}"))

    def lines(self, name: str) -> list[bytes]:
        """All that is stored of a file, in order."""
        found = []
        for place in self.of(name):
            for message in place.batches:
                found += lines_of(message)
        return found


def lines_of(message: ClogsMessage) -> list[bytes]:
    raw = decompress(message.body, message.codec, raw_bytes=message.raw_bytes)
    group = decode_log_group(raw)
    return [
        next(content.Value for content in log.Contents if content.Key == b"message")
        for log in group.Logs
    ]


class MemorySink:
    """One receiver's way to the storage."""

    def __init__(self, storage: MemoryStorage) -> None:
        self.storage = storage

    async def locate(self, key: str, name: str) -> str:  # noqa: ARG002 (all may)
        self._check()
        return self.storage.of(name)[-1].name

    async def store(self, key: str, message: ClogsMessage) -> str:  # noqa: ARG002 (all may)
        self._check()
        places = self.storage.of(message.name)
        if message.place:
            place = next((each for each in places if each.name == message.place), None)
            if place is None:
                raise PlaceMoved(f"there is no place {message.place}")
            place.append(message)
            return place.name
        if not message.is_resumed:
            raise InvalidInput("a batch without a place: locate it first")
        for place in places:
            try:
                place.append(message)
            except PlaceMoved:
                continue
            return places[-1].name
        raise Unavailable("all places have ended")

    def _check(self) -> None:
        if not self.storage.is_available:
            raise Unavailable("the storage is not available")


__all__ = ["MemorySink", "MemoryStorage", "Place", "lines_of"]
