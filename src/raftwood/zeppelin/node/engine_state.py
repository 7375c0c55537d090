"""How far a partition's engine has got: part of every batch, so that both are of one moment."""

from typing import Final

import msgspec

from raftwood.base.errors import StoreDamaged, UnsupportedVersion
from raftwood.zeppelin.node.seams import BinlogPosition, EpochStart, Record

VERSION: Final = 1


class EngineState(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """What the engine holds."""

    version: int = VERSION
    sequence: int = 0
    """Of the last record that is in it."""
    epochs: tuple[EpochStart, ...] = ()
    """Up to that record, in order."""
    repairing: BinlogPosition | None = None
    """Some keys are ahead of the record: they are of one moment again from this position on."""
    flushed: int = 0
    """The sequence of the last flush that is in it."""
    slots: tuple[int, int] | None = None
    """The first slot, and the one behind the last, of those whose keys are all here: others may
    have been taken out. None: nothing ever was."""
    is_trimmed: bool = False
    """No keys of other slots are here."""
    keys: int = 0
    """So many stand before `counted_to`, of whatever slots, those that have ended too; the ones
    that end stand among the endings, and the landmarks among the landmarks."""
    counted_to: bytes = b""
    """Empty: nothing was counted yet. Release 0.1.0 counts nothing, and leaves this out."""

    @property
    def epoch(self) -> int:
        return self.epochs[-1].epoch if self.epochs else 0

    def after(self, record: Record) -> "EngineState":
        """With a record in it; those before it are too."""
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
        """Whether all keys of some slots are here that its records gave it."""
        return self.slots is None or (self.slots[0] <= slots.start and slots.stop <= self.slots[1])

    def is_trimmed_to(self, slots: range) -> bool:
        """Whether there are keys of these slots, and no others."""
        return self.is_trimmed and self.slots == (slots.start, slots.stop)


LOST: Final = BinlogPosition((1 << 63) - 1, (1 << 63) - 1)
"""`repairing` of a partition whose data was damaged: no binlog ever gets there, so nothing but a
whole copy of its master's makes it whole, and until then it neither leads nor counts."""


def has_passed(position: BinlogPosition, epoch: int, sequence: int) -> bool:
    """Whether a binlog that ends there holds the position, or what came instead of it."""
    return epoch >= position.epoch and sequence >= position.sequence


def with_epoch(epochs: tuple[EpochStart, ...], epoch: int, sequence: int) -> tuple[EpochStart, ...]:
    """The epochs of a binlog with one more record."""
    if epochs and epochs[-1].epoch == epoch:
        return epochs
    return (*epochs, EpochStart(epoch, sequence))


def epochs_to(epochs: tuple[EpochStart, ...], sequence: int) -> tuple[EpochStart, ...]:
    """Those of the records up to a sequence."""
    return tuple(each for each in epochs if each.sequence <= sequence)


def epochs_from(epochs: tuple[EpochStart, ...], sequence: int) -> tuple[EpochStart, ...]:
    """Those of the records from a sequence on."""
    later = [each for each in epochs if each.sequence > sequence]
    return epochs[len(epochs) - len(later) - 1 :] if len(later) < len(epochs) else epochs


_encoder = msgspec.msgpack.Encoder()


def encode_state(state: EngineState) -> bytes:
    if not state.counted_to:  # as release 0.1.0 wrote it
        return _encoder.encode(msgspec.structs.astuple(state)[:-2])
    return _encoder.encode(state)


def decode_state(data: bytes) -> EngineState:
    try:
        fields = msgspec.msgpack.decode(data)
        if isinstance(fields, list) and fields and fields[0] != VERSION:
            raise UnsupportedVersion(
                f"a partition's engine has format {fields[0]}, this program reads {VERSION}: use "
                "the newer version that wrote it"
            )
        return msgspec.convert(fields, EngineState)
    except (msgspec.MsgspecError, ValueError) as error:
        raise StoreDamaged(
            f"the state of a partition's engine cannot be read ({error}): restore the partition "
            "from a replica"
        ) from error
