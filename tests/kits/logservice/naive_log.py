"""A log shard's rules in the plainest way: everything is kept, nothing is clever."""

from raftwood.logservice.records import NO_PRODUCER, SEALED, UpdateKind

REFUSED = "refused"


class NaiveProducer:
    """Where each sequence went."""

    def __init__(self, index: int) -> None:
        self.places: dict[int, int | str] = {}
        self.top = 0
        self.used = self.looked_at = index


class NaiveLog:
    """Answers a number, or the name of an error's class."""

    def __init__(self, *, window: int, producers_max: int) -> None:
        self._window = window
        self._producers_max = producers_max
        self.producers: list[tuple[bytes, NaiveProducer]] = []
        self.records: dict[int, bytes] = {}
        """By LSN: what a reader would see if nothing was truncated."""
        self.holder = 0
        self.sealed_lsn = 0
        self.truncated = 0
        self.required = 0
        self.tso = 1

    @property
    def first_lsn(self) -> int:
        if self.required and self.required <= self.truncated:
            return self.required
        return self.truncated + 1

    def readable(self) -> dict[int, bytes]:
        return {lsn: data for lsn, data in self.records.items() if lsn >= self.first_lsn}

    def append(
        self, index: int, *, name: bytes, sequence: int, holder: int, is_ordered: bool, data: bytes
    ) -> int | str:
        producer = self._producer(name, index) if name != NO_PRODUCER else None
        if producer is not None:
            producer.used = index
            if sequence > producer.top + 1 and is_ordered:
                return "SequenceGap"
            if sequence <= producer.top - self._window:
                return "SequenceForgotten"
            place = producer.places.get(sequence)
            if place is not None:
                return "NotLeaseholder" if place == REFUSED else place
            if sequence <= producer.top and is_ordered:
                return "SequenceForgotten"
        is_refused = self.holder not in (0, holder) or self.holder == SEALED
        if producer is not None:
            producer.places[sequence] = REFUSED if is_refused else index
            producer.top = max(producer.top, sequence)
        if is_refused:
            return "NotLeaseholder"
        self.records[index] = data
        return index

    def _producer(self, name: bytes, index: int) -> NaiveProducer:
        for known, producer in self.producers:
            if known == name:
                return producer
        while len(self.producers) >= self._producers_max:
            known, first = self.producers.pop(0)
            if first.used != first.looked_at:
                first.looked_at = first.used
                self.producers.append((known, first))
        self.producers.append((name, NaiveProducer(index)))
        return self.producers[-1][1]

    def update(self, index: int, kind: UpdateKind, number: int) -> int | str:
        if kind is UpdateKind.LEASEHOLDER:
            if number < self.holder:
                return "LeaseTooOld"
            self.holder = number
            if number == SEALED and not self.sealed_lsn:
                self.sealed_lsn = index
            return number
        if kind is UpdateKind.TRUNCATE:
            if number >= (self.sealed_lsn or index):
                return "LsnPastEnd"
            self.truncated = max(self.truncated, number)
            return self.truncated
        if kind is UpdateKind.TSO:
            if not number:
                return "InvalidInput"
            self.tso += number
            return self.tso - number
        if number and number < self.first_lsn:
            return "LsnTruncated"
        if number > index:
            return "LsnPastEnd"
        self.required = number
        return number
