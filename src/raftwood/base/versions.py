"""Stored bytes with a version of their format: a newer one is refused, not misread."""

from collections.abc import Callable
from typing import TypeVar

import msgspec

from raftwood.base.errors import InvalidInput, StoreDamaged, UnsupportedVersion
from raftwood.base.files import Buffer

Decoded = TypeVar("Decoded")


def unsupported(name: str, version: int, newest: int) -> UnsupportedVersion:
    """Makes the error for stored bytes of a version that this program does not read."""
    return UnsupportedVersion(
        f"{name} has format {version}, this program reads up to {newest}: use the version that "
        "wrote it, or a newer one"
    )


class _Beginning(msgspec.Struct, array_like=True):
    version: int


def decode_versioned(
    data: Buffer, kind: type[Decoded], *, version: int, name: str, remedy: str = ""
) -> Decoded:
    """Decodes a struct whose first field is its version, as an array in msgpack.

    Raises `UnsupportedVersion` if it is newer than `version`, `StoreDamaged` for other bytes.
    """
    try:
        # The other fields may differ in a newer format.
        found = msgspec.msgpack.decode(data, type=_Beginning).version
        if not 1 <= found <= version:
            raise unsupported(name, found, version)
        return msgspec.msgpack.decode(data, type=kind)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        end = f": {remedy}" if remedy else ""
        raise StoreDamaged(f"{name} cannot be read ({error}){end}") from error


class StateFormat(msgspec.Struct, frozen=True):
    """The format of a state machine's snapshot: a magic, the version in one byte, the body."""

    magic: bytes
    version: int
    name: str

    def encode(self, body: bytes) -> bytes:
        return b"".join((self.magic, bytes((self.version,)), body))

    def decode(self, data: bytes, decode_body: Callable[[bytes], Decoded]) -> Decoded:
        """Decodes a state; `UnsupportedVersion` if it is newer, `StoreDamaged` for other bytes."""
        head = len(self.magic) + 1
        try:
            if len(data) < head or not data.startswith(self.magic):
                raise ValueError("it begins otherwise")
            if not 1 <= data[head - 1] <= self.version:
                raise unsupported(f"a snapshot of {self.name}", data[head - 1], self.version)
            return decode_body(data[head:])
        except (msgspec.MsgspecError, ValueError, RecursionError, InvalidInput) as error:
            raise StoreDamaged(
                f"a snapshot of {self.name} cannot be read ({error}): remove this replica and add "
                "it anew"
            ) from error
