"""What a tailer knows of a file: who it is, how it looked, and what is durable about it."""

from typing import Final

import msgspec
import xxhash

from raftwood.base.codecs import Codec
from raftwood.base.errors import StoreDamaged, UnsupportedVersion
from raftwood.base.files import Buffer

HEAD_BYTES: Final = 1024
"""The beginning of a file that tells whether it still is the same."""
VERSION: Final = 1


class Identity(msgspec.Struct, frozen=True, array_like=True, order=True):
    """Which file it is on this machine, whatever its name."""

    device: int
    inode: int


class Found(msgspec.Struct, frozen=True):
    """A file as a scan found it by a path; symbolic links are followed."""

    path: str
    identity: Identity
    size: int
    mtime_ns: int
    is_matched: bool = True
    """By a glob; else it was looked for, as it once was."""
    target: str = ""
    """Where a symbolic link leads to."""


class Look(msgspec.Struct, frozen=True):
    """An open file as it was at one moment."""

    identity: Identity
    size: int
    mtime_ns: int
    links: int
    """0: it has no name any more, and is gone once it is closed."""
    head: bytes = b""
    """Its first bytes, up to `HEAD_BYTES`."""
    birth_ns: int = 0
    """When it was made; 0 where nobody asked, or the file system does not tell."""


class Head(msgspec.Struct, frozen=True, array_like=True):
    """Of the bytes that were read, the first ones: as much as is needed to know the file again."""

    length: int = 0
    hash: int = 0

    @classmethod
    def of(cls, data: Buffer, length: int) -> "Head":
        return cls(length, xxhash.xxh3_64_intdigest(data[:length]))

    def begins(self, data: Buffer) -> bool:
        return len(data) >= self.length and (
            not self.length or xxhash.xxh3_64_intdigest(data[: self.length]) == self.hash
        )


class Intent(msgspec.Struct, frozen=True, array_like=True):
    """A batch that may have been sent: enough to make it again and send it under its old name."""

    producer: bytes
    sequence: int
    begin: int
    end: int
    checksum: int
    """XXH3-64 of the file's bytes from begin to end."""
    cuts: int
    """How often the file had been cut when they were read."""
    codec: Codec
    rules: int
    """Digest of the rules that made it; others make another batch, under the same name."""
    begins_mid_line: bool = False
    """What is before it in its line was shipped as a line of its own."""
    ends_mid_line: bool = False


class Checkpoint(msgspec.Struct, frozen=True, array_like=True, kw_only=True):
    """What is durable about a file. All before `offset` is stored; intents follow, in order."""

    version: int = VERSION
    identity: Identity
    path: str
    """Where it was seen last."""
    folder: str
    """Where its target is, symbolic links followed: to be found there under another name."""
    name: str
    """What it is shipped as."""
    home: str
    """The path that its name is of."""
    offset: int = 0
    is_mid_line: bool = False
    cuts: int = 0
    head: Head = Head()
    intents: tuple[Intent, ...] = ()
    birth_ns: int = 0


_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(Checkpoint).decode


def encode_checkpoint(checkpoint: Checkpoint) -> bytes:
    return _encode(checkpoint)


def decode_checkpoint(data: Buffer) -> Checkpoint:
    """`UnsupportedVersion` for one of a later program, `StoreDamaged` for what is none."""
    try:
        (version, *_) = msgspec.msgpack.decode(data, type=list)
        if isinstance(version, int) and version > VERSION:
            raise UnsupportedVersion(
                f"a file's state has version {version}, this program reads up to {VERSION}: "
                "use the version that wrote it, or a newer one"
            )
        return _decode(data)
    except (msgspec.DecodeError, ValueError) as error:
        raise StoreDamaged(
            f"a file's state cannot be read ({error}): remove the state folder; what was shipped "
            "of the files is then shipped again"
        ) from error
