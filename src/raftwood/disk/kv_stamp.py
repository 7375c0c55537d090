"""The stamp beside a RocksDB: its format's version, and the sequence that surely was flushed.

Written after each flush. RocksDB takes a manifest whose end is missing for the trace of a crash,
and forgets every file named there; the stamp tells that more had been durable. A stamp older than
the data is right, so a crash between flush and stamp does no harm.
"""

import os
import struct
from typing import Final

import xxhash

from raftwood.base.errors import StoreDamaged, StoreError, UnsupportedVersion

NAME: Final = "RAFTWOOD-KV"
MAGIC: Final = b"RWKV"
VERSION: Final = 1
_BODY: Final = struct.Struct("<4sIQ")
_CHECKSUM: Final = struct.Struct("<Q")


def encode_stamp(sequence: int) -> bytes:
    """Magic, version, sequence and their checksum."""
    body = _BODY.pack(MAGIC, VERSION, sequence)
    return body + _CHECKSUM.pack(xxhash.xxh3_64_intdigest(body))


def decode_stamp(data: bytes, folder: str) -> int:
    """The sequence; raises what the folder's user should know."""
    if len(data) >= _BODY.size:
        magic, version, sequence = _BODY.unpack_from(data)
        if magic == MAGIC and version > VERSION:
            raise UnsupportedVersion(
                f"key-value engine {folder!r} has format {version}, this program knows up to "
                f"{VERSION}: use the newer version that wrote it"
            )
        if data == encode_stamp(int(sequence)):
            return int(sequence)
    raise StoreDamaged(
        f"key-value engine {folder!r} is damaged: its file {NAME} is not as it was written; "
        "restore the folder from a checkpoint or a replica"
    )


def read_stamp(folder: str) -> int:
    """The sequence that was flushed, 0 for a folder without a stamp that holds no data either."""
    try:
        with open(os.path.join(folder, NAME), "rb") as stream:
            return decode_stamp(stream.read(1024), folder)
    except FileNotFoundError:
        return 0
    except OSError as error:
        raise StoreError(
            f"key-value engine {folder!r} cannot be read: {error.strerror}; check the folder's "
            "path and permissions"
        ) from error


def write_stamp(folder: str, sequence: int) -> None:
    """Replace the stamp, durably."""
    path = os.path.join(folder, NAME)
    temporary = path + ".new"
    with open(temporary, "wb") as stream:
        stream.write(encode_stamp(sequence))
        stream.flush()
        os.fdatasync(stream.fileno())
    os.replace(temporary, path)
    directory = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)
