"""Checkpoints of files in a segment log: a group each, its state the latest checkpoint.

Group 0 says that a tailer has run here before, so that files that are there when it first runs can
be told from those that come later.
"""

import asyncio
from typing import Final

from raftwood.base.errors import NotFound
from raftwood.clogs.tail.model import Checkpoint, decode_checkpoint, encode_checkpoint
from raftwood.disk.segment_log import DropGroup, LogSettings, Record, SegmentLog, State

STATE_SETTINGS: Final = LogSettings(
    segment_bytes=4 << 20, flush_bytes_max=1 << 20, pending_bytes_max=16 << 20, cache_bytes_max=0
)
_BEGUN: Final = 0
_RECORDS_PER_WRITE: Final = 200


class Checkpoints:
    """All files' checkpoints. Writes raise `DiskFull` or `Overloaded`, with nothing written."""

    def __init__(self, log: SegmentLog) -> None:
        self._log = log

    @property
    def is_new(self) -> bool:
        """No tailer has been at work with this state."""
        return _BEGUN not in self._log.groups()

    def load(self) -> dict[int, Checkpoint]:
        found = {}
        for number in self._log.groups():
            state = self._log.state(number)
            if number != _BEGUN and state is not None:
                found[number] = decode_checkpoint(state)
        return found

    async def begin(self, checkpoints: dict[int, Checkpoint]) -> None:
        """Durable at once: where the files that are there at first are begun."""
        records: list[Record] = [
            State(number, encode_checkpoint(each)) for number, each in checkpoints.items()
        ]
        for start in range(0, len(records), _RECORDS_PER_WRITE):
            await self._log.commit(*records[start : start + _RECORDS_PER_WRITE])
        await self._log.commit(State(_BEGUN, b""))

    def save(self, number: int, checkpoint: Checkpoint) -> asyncio.Event:
        """Write a checkpoint; the event is set once it is durable."""
        durable = asyncio.Event()
        self._log.write((State(number, encode_checkpoint(checkpoint)),), durable.set)
        return durable

    def note(self, number: int, checkpoint: Checkpoint) -> None:
        """Write a checkpoint that outlives this process, and is durable with the next one saved."""
        self._log.write((State(number, encode_checkpoint(checkpoint)),), written=_nothing)

    def drop(self, number: int) -> None:
        try:
            self._log.write((DropGroup(number),), written=_nothing)
        except NotFound:
            return  # nothing of it was ever saved


def _nothing() -> None: ...
