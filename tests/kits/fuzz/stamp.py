"""Any bytes as a data folder's stamp: an identity, or an error of the store."""

import contextlib

from raftwood.base.errors import StoreError
from raftwood.disk.store import FolderIdentity, decode_identity, encode_identity


def target(data: bytes) -> None:
    with contextlib.suppress(StoreError):
        identity = decode_identity(data, path="fuzz")
        assert decode_identity(encode_identity(identity), path="fuzz") == identity


def seeds() -> list[bytes]:
    return [
        encode_identity(FolderIdentity("c", 1, "00ff")),
        encode_identity(FolderIdentity("cluster-name", (1 << 32) - 1, "f" * 16, initialised=True)),
    ]
