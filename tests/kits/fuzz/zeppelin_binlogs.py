"""Any bytes as what a node of Zeppelin keeps: runs of binlogs, records, what engines say of it."""

import contextlib

from raftwood.base.errors import ProtocolError, StoreError
from raftwood.zeppelin.node.binlog import decode_records, decode_run, encode_run
from raftwood.zeppelin.node.engine import (
    EngineState,
    decode_state,
    decode_value,
    encode_state,
    encode_value,
    engine_key,
    key_of,
)
from raftwood.zeppelin.node.engine_folders import HeldEngine, decode_held, encode_held
from raftwood.zeppelin.records import (
    BinlogPosition,
    BinlogRecord,
    EpochStart,
    KeyWrite,
    decode_record,
    encode_record,
)

RECORDS = [
    BinlogRecord(3, 9, (KeyWrite(b"k", b"v"), KeyWrite(b"{t}gone", None))),
    BinlogRecord(3, 10, (KeyWrite(b"t", b"v", 1_700_000_000_000),), True, (b"client", 5)),
]


def run_target(data: bytes) -> None:
    with contextlib.suppress(StoreError):
        run = decode_run(data)
        again = encode_run(
            epoch=run.epoch,
            first_sequence=run.first_sequence,
            records=run.records,
            hour=run.hour,
        )
        assert decode_run(again) == run
        decode_records(run)


def run_seeds() -> list[bytes]:
    records = [encode_record(record) for record in RECORDS]
    return [encode_run(epoch=3, first_sequence=9, records=records, hour=480_000)]


def record_target(data: bytes) -> None:
    with contextlib.suppress(ProtocolError):
        record = decode_record(data)
        assert decode_record(encode_record(record)) == record


def record_seeds() -> list[bytes]:
    return [encode_record(record) for record in RECORDS]


def state_target(data: bytes) -> None:
    with contextlib.suppress(StoreError):
        state = decode_state(data)
        assert decode_state(encode_state(state)) == state
    with contextlib.suppress(StoreError):
        held = decode_held(data, group=1)
        assert decode_held(encode_held(held), group=1) == held
    with contextlib.suppress(StoreError):
        value = decode_value(data)
        assert decode_value(encode_value(value.data, value.expires_ms)) == value
    with contextlib.suppress(StoreError):
        key_of(data)
    assert key_of(engine_key(data)) == data


def state_seeds() -> list[bytes]:
    state = EngineState(
        sequence=5, epochs=(EpochStart(1, 1), EpochStart(4, 3)), repairing=BinlogPosition(5, 9)
    )
    return [
        encode_state(state),
        encode_held(HeldEngine(1, "table", "7-3-0")),
        encode_value(b"data", 1_700_000_000_000),
        engine_key(b"{a\x00b}c"),
    ]
