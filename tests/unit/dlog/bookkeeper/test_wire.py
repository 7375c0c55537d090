"""Golden bytes of both of BookKeeper's protocols, and what its statuses mean."""

import pytest

from raftwood.base.errors import Overloaded, PermissionDenied, ProtocolError, RaftwoodError
from raftwood.dlog.bookkeeper import binary_protocol, protobuf_protocol
from raftwood.dlog.bookkeeper.connection import error_of
from raftwood.dlog.bookkeeper.messages import Request
from raftwood.dlog.errors import (
    BookieReadOnly,
    BookieUnavailable,
    Fenced,
    NoSuchEntry,
    NoSuchLedger,
)
from raftwood.dlog.ledgers.metadata import BookieId

KEY = bytes(range(20))
PACKED = (b"h" * 32, b"dddd", b"data")


def test_an_add_by_v2_is_a_head_the_key_and_the_entry() -> None:
    frame = binary_protocol.add_request(KEY, PACKED, is_recovery=False)
    assert frame == bytes.fromhex("00000040 02010000") + KEY + b"".join(PACKED)


def test_an_add_in_recovery_by_v2_carries_a_flag() -> None:
    frame = binary_protocol.add_request(KEY, PACKED, is_recovery=True)
    assert frame[:8] == bytes.fromhex("00000040 02010002")


def test_a_read_by_v2_names_ledger_and_entry() -> None:
    assert binary_protocol.read_request(5, -1) == bytes.fromhex(
        "00000014 02020000 0000000000000005 ffffffffffffffff"
    )


@pytest.mark.parametrize("is_recovery", [False, True])
@pytest.mark.parametrize("number", [1, 127, 128, 1 << 40])
@pytest.mark.parametrize("ledger", [0, 1 << 62])
@pytest.mark.parametrize("size", [0, 100, 20_000])
def test_an_add_by_v3_made_by_hand_is_what_protobuf_makes(
    number: int, ledger: int, size: int, is_recovery: bool
) -> None:
    packed = (b"h" * 32, bytes(size))
    request = Request()
    request.header.version = 3
    request.header.operation = 2
    request.header.txnId = number
    request.addRequest.ledgerId = ledger
    request.addRequest.entryId = 300
    request.addRequest.masterKey = KEY
    request.addRequest.body = b"".join(packed)
    if is_recovery:
        request.addRequest.flag = 1
    encoded = request.SerializeToString()
    frame = protobuf_protocol.add_request(
        number, ledger=ledger, entry=300, packed=packed, master_key=KEY, is_recovery=is_recovery
    )
    assert frame == len(encoded).to_bytes(4) + encoded


def test_the_other_requests_by_v3() -> None:
    read = protobuf_protocol.read_request(7, ledger=5, entry=-1, fence_key=None)
    assert read == bytes.fromhex("00000018 0a06080310011807 a2060d 0805 10ffffffffffffffffff01")
    fence = protobuf_protocol.read_request(7, ledger=5, entry=2, fence_key=KEY)
    assert fence == bytes.fromhex(
        "0000002a 0a0808031001180720 64a2061d 08051002 1a14" + KEY.hex() + "a00601"
    )
    wait = protobuf_protocol.wait_request(7, ledger=5, after=2, timeout_ms=100)
    assert wait == bytes.fromhex(
        "0000001f 0a06080310011807 a20614 0805 10ffffffffffffffffff01 2002 2864 a00602"
    )
    assert protobuf_protocol.read_last_confirmed_request(7, ledger=5) == bytes.fromhex(
        "0000000d 0a06080310071807 c206020805"
    )
    assert protobuf_protocol.start_tls_request(0) == bytes.fromhex(
        "0000000b 0a06080310091800 d20600"
    )
    write = protobuf_protocol.write_last_confirmed_request(
        7, ledger=5, last_confirmed=2, master_key=KEY, body=b"body"
    )
    assert write == bytes.fromhex(
        "0000002b 0a06080310061807 ba0620 0805 1002 1a14" + KEY.hex() + "2204" + b"body".hex()
    )


@pytest.mark.parametrize("frame", ["", "0801", "0a06080310011807", "ff", "0a0408031001"])
def test_an_answer_without_number_or_status_breaks_the_protocol(frame: str) -> None:
    with pytest.raises(ProtocolError):
        protobuf_protocol.parse_response(bytes.fromhex(frame))


@pytest.mark.parametrize(
    ("in_v2", "in_v3", "kind"),
    [
        (1, 402, NoSuchLedger),
        (2, 403, NoSuchEntry),
        (100, 404, ProtocolError),
        (101, 501, BookieUnavailable),
        (102, 502, PermissionDenied),
        (103, 503, ProtocolError),
        (104, 504, Fenced),
        (105, 505, BookieReadOnly),
        (106, 506, Overloaded),
        (107, 507, BookieUnavailable),
        (9999, 9999, BookieUnavailable),
    ],
)
def test_a_status_means_the_same_in_both_protocols(
    in_v2: int, in_v3: int, kind: type[RaftwoodError]
) -> None:
    for status in (in_v2, in_v3):
        error = error_of(status, BookieId("one:1"), 5, 7)
        assert type(error) is kind
        assert "one:1" in error.message
        assert "ledger 5" in error.message
