"""HORIZON: how far a log went, kept apart from the segments that may go missing.

A flush says what was synced before it. If the newest segment is deleted, zeroed or replaced by an
older copy, this statement is gone with it, and the rest looks like a whole log with a torn tail. A
store would vote by such a log, and a bookie would answer "no such entry". So a small file beside
the segments says which segment was begun, and up to where all was durable.

    HORIZON   [slot 0][slot 1]          a page each, so that one bad sector leaves the other

Both slots are written, one after the other and each synced, when the log is opened, when a segment
begins and when the log is closed. Between these the second slot alone is written, without a sync,
and synced once a second: after a kill it is fresh, after a power loss a second old at the most. On
a disk whose syncs take longer than a tenth of a second it is ten syncs old at the most.

What a slot says was durable before it was written. So it is never ahead of the log, and a log that
ends before it has lost what was acked.
"""

from struct import Struct
from typing import Final

import msgspec
from xxhash import xxh3_64_intdigest as checksum_of

from raftwood.base import files as seam
from raftwood.base.files import Buffer, Files, perform

NAME: Final = "HORIZON"
_TEMPORARY: Final = "HORIZON.temporary"
MAGIC: Final = b"RWHORZN\x01"
_SLOT: Final = Struct("<8sQ16sQQIB")
"""magic, checksum of the rest, log id, sequence, synced, begun segment, whether closed."""
_CHECKED_FROM: Final = 16
SLOT_BYTES: Final = 4096


class Horizon(msgspec.Struct, frozen=True):
    """The contents of one slot."""

    log_id: bytes
    sequence: int
    """Of two slots, the one with the higher sequence is the newer."""
    synced: int
    """Everything below this position was durable."""
    begun: int
    """The segment written last, whose file must exist."""
    is_closed: bool
    """Whether the log was closed with nothing behind `synced`."""


def encode_horizon(horizon: Horizon) -> bytes:
    body = _SLOT.pack(
        MAGIC,
        0,
        horizon.log_id,
        horizon.sequence,
        horizon.synced,
        horizon.begun,
        horizon.is_closed,
    )[_CHECKED_FROM:]
    return MAGIC + checksum_of(body).to_bytes(8, "little") + body


def decode_horizon(data: Buffer) -> Horizon | None:
    """Decodes the newer of the intact slots; None if neither is intact.

    Test: test_log_horizon::test_one_bad_slot_leaves_the_other
    """
    return max(_whole_slots(data), key=lambda slot: slot.sequence, default=None)


def _whole_slots(data: Buffer) -> list[Horizon]:
    slots = (_decode_slot(data, offset) for offset in (0, SLOT_BYTES))
    return [slot for slot in slots if slot]


def _decode_slot(data: Buffer, offset: int) -> Horizon | None:
    if offset + _SLOT.size > len(data):
        return None
    magic, checksum, log_id, sequence, synced, begun, is_closed = _SLOT.unpack_from(data, offset)
    body = bytes(data[offset + _CHECKED_FROM : offset + _SLOT.size])
    if magic != MAGIC or checksum != checksum_of(body):
        return None
    return Horizon(log_id, sequence, synced, begun, bool(is_closed))


def horizon_path(folder: str) -> str:
    return f"{folder}/{NAME}"


async def load_horizon(files: Files, folder: str) -> Horizon | None:
    """Reads the file; None if it is missing or unreadable."""
    return decode_horizon(await _load(files, folder))


async def has_lost_slot(files: Files, folder: str) -> bool:
    """Whether one of the two slots is bad; the next start repairs it by writing both."""
    return len(_whole_slots(await _load(files, folder))) == 1


async def _load(files: Files, folder: str) -> Buffer:
    path = horizon_path(folder)
    data: Buffer = b""
    (size,) = await perform(files, seam.Size(path))
    if size is not None:
        (data,) = await perform(files, seam.Read(path, 0, 2 * SLOT_BYTES))
    return data


class HorizonFile:
    """Makes the operations that write the file; its owner submits them in the log's order."""

    def __init__(self, folder: str, *, log_id: bytes, last: Horizon | None) -> None:
        self.path = horizon_path(folder)
        self._folder = folder
        self._log_id = log_id
        self._exists = last is not None
        self._sequence = last.sequence if last is not None else 0

    def _slot(self, *, synced: int, begun: int, is_closed: bool) -> bytes:
        self._sequence += 1
        return encode_horizon(Horizon(self._log_id, self._sequence, synced, begun, is_closed))

    def opening(self, *, synced: int, begun: int) -> list[seam.Operation]:
        """Notes where a newly opened log stands; creates the file if it is missing."""
        if self._exists:
            return [
                seam.Open(self.path),
                *self.durable(synced=synced, begun=begun, is_closed=False),
            ]
        self._exists = True
        temporary = f"{self._folder}/{_TEMPORARY}"
        slot = self._slot(synced=synced, begun=begun, is_closed=False)
        # The file has its final length from the start, so that no later write needs room: a log on
        # a full disk can still be closed. It gets its name once both slots are durable.
        return [
            seam.Open(temporary, create=True),
            seam.Truncate(temporary, 0),
            seam.Preallocate(temporary, 2 * SLOT_BYTES),
            seam.Write(temporary, 0, [slot]),
            seam.Write(temporary, SLOT_BYTES, [slot]),
            seam.DataSync(temporary),
            seam.Rename(temporary, self.path),
            seam.SyncDirectory(self._folder),
        ]

    def durable(self, *, synced: int, begun: int, is_closed: bool) -> list[seam.Operation]:
        """Writes both slots, one after the other: a torn write leaves the other one whole.

        Tests: test_log_horizon::test_either_slot_tells_that_a_log_was_closed,
        test_a_power_loss_while_a_horizon_is_written_leaves_a_whole_slot
        """
        slot = self._slot(synced=synced, begun=begun, is_closed=is_closed)
        return [
            operation
            for offset in (SLOT_BYTES, 0)
            for operation in (seam.Write(self.path, offset, [slot]), seam.DataSync(self.path))
        ]

    def note(self, *, synced: int, begun: int) -> seam.Operation:
        """Writes the second slot, to be synced later; the first one stays as it is.

        A power loss may tear this page while it is unsynced. The first slot then still names the
        segment that was begun, so at most the note of the last second is lost.
        """
        slot = self._slot(synced=synced, begun=begun, is_closed=False)
        return seam.Write(self.path, SLOT_BYTES, [slot])
