"""What is known of one plain file: up to where it is good, and which batches are in it. No I/O."""

from typing import Annotated, Final

import msgspec

from raftwood.base.errors import SequenceForgotten, StoreDamaged, UnsupportedVersion

VERSION: Final = 1
WINDOW: Final = 1024
"""How many sequences behind its last one are known of a producer, as in a log."""
PRODUCERS_MAX: Final = 256
"""Of one file; the one unused for longest is forgotten where there are more."""


class ProducerWindow(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """The last sequences of one producer: bit N stands for N below the highest."""

    top: int
    bits: bytes

    def has(self, sequence: int) -> bool:
        if sequence > self.top:
            return False
        behind = self.top - sequence
        if behind >= WINDOW:
            raise SequenceForgotten(
                f"sequence {sequence} is {behind} behind its producer's last one, {self.top}: it "
                "is not known any more whether it was stored"
            )
        return bool(int.from_bytes(self.bits, "little") >> behind & 1)

    def after(self, sequence: int) -> "ProducerWindow":
        top = max(self.top, sequence)
        step, behind = top - self.top, top - sequence
        if behind >= WINDOW:
            return self
        # A shipper's numbers decide how far is shifted: never further than the window.
        bits = int.from_bytes(self.bits, "little") << step if step < WINDOW else 0
        bits = (bits | 1 << behind) & ((1 << WINDOW) - 1)
        return ProducerWindow(top, bits.to_bytes((bits.bit_length() + 7) // 8, "little"))


class FileState(msgspec.Struct, frozen=True, array_like=True):
    """Durable before a batch of the file is acknowledged, and after its lines are."""

    version: int
    name: str
    length: Annotated[int, msgspec.Meta(ge=0)]
    """What is behind this was never acknowledged."""
    producers: dict[bytes, ProducerWindow] = {}
    """In the order in which they last wrote."""

    def has(self, producer: bytes, sequence: int) -> bool:
        """`SequenceForgotten` where it is too old to know."""
        window = self.producers.get(producer)
        return window is not None and window.has(sequence)

    def after(self, length: int, batches: list[tuple[bytes, int]]) -> "FileState":
        """Once these batches are in the file, which is so long then."""
        producers = dict(self.producers)
        for producer, sequence in batches:
            window = producers.pop(producer, None) or ProducerWindow(sequence, b"")
            producers[producer] = window.after(sequence)
        while len(producers) > PRODUCERS_MAX:
            del producers[next(iter(producers))]
        return FileState(VERSION, self.name, length, producers)


_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(FileState).decode


def encode_file_state(state: FileState) -> bytes:
    return _encode(state)


def decode_file_state(data: bytes) -> FileState:
    try:
        state = _decode(data)
    except (msgspec.MsgspecError, ValueError) as error:
        raise StoreDamaged(f"what is kept of a plain file cannot be read: {error}") from error
    if state.version != VERSION:
        raise UnsupportedVersion(
            f"what is kept of a plain file has version {state.version}, this program reads "
            f"{VERSION}: use a newer one"
        )
    return state
