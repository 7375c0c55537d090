"""What nodes of Zeppelin send to one another."""

from raftwood.base.errors import InvalidInput, ProtocolError
from raftwood.zeppelin.model import PartitionId
from raftwood.zeppelin.records import BinlogPosition, EpochStart
from raftwood.zeppelin.replication.epochs import SyncOffer
from raftwood.zeppelin.replication.progress import Reached
from raftwood.zeppelin.replication.wire import (
    ACK,
    TRY_SYNC,
    AckRequest,
    CopyChunk,
    CopyEnd,
    RecordsPart,
    SlaveStanding,
    TrySyncRequest,
    decode_copy,
    decode_parts,
    encode_copy,
    encode_parts,
)

_PARTITION = PartitionId(7, 3)


def records_target(data: bytes) -> None:
    try:
        decode_parts(data)
    except ProtocolError:
        return


def records_seeds() -> list[bytes]:
    return [
        encode_parts(
            [RecordsPart(_PARTITION, 1 << 33, [b"record", b""]), RecordsPart(_PARTITION, 2, [])]
        ),
        encode_parts([]),
    ]


def request_target(data: bytes) -> None:
    for method in (TRY_SYNC, ACK):
        try:
            method.decode_request(data)
        except InvalidInput:
            continue


def request_seeds() -> list[bytes]:
    offer = SyncOffer(
        epoch=9, first=1, last=30, epochs=(EpochStart(9, 1),), repairing=BinlogPosition(9, 40)
    )
    standing = SlaveStanding(_PARTITION, 4, Reached(9, 8, 7), is_whole=True)
    return [
        TRY_SYNC.encode(TrySyncRequest(_PARTITION, 5, 1, offer)),
        ACK.encode(AckRequest([standing, standing])),
    ]


def copy_target(data: bytes) -> None:
    try:
        item = decode_copy(data)
    except ProtocolError:
        return
    assert decode_copy(encode_copy(item)) == item


def copy_seeds() -> list[bytes]:
    return [
        encode_copy(CopyChunk("000012.sst", 1 << 20, b"data")),
        encode_copy(CopyEnd({"CURRENT": (16, 1 << 63)}, 77, (EpochStart(1, 1),))),
    ]
