"""Errors that travel: a client that does not know a class takes it for what it descends from."""

import subprocess
import sys

import msgspec
import pytest

from raftwood.base.errors import (
    ConnectionLost,
    DiskFull,
    InternalError,
    RaftwoodError,
    Unavailable,
)
from raftwood.net.wire_errors import decode_error, encode_error
from raftwood.raft.core.errors import ProposalDropped
from raftwood.raft.requests import OutcomeUnknown

IN_A_CLIENT = """
import sys
import raftwood.logservice.client as client
from raftwood.net.wire_errors import decode_error
for name in client.__all__:
    getattr(client, name)
print(type(decode_error(bytes.fromhex(sys.argv[1]))).__name__)
"""


@pytest.mark.parametrize(
    ("error", "expected"),
    [(ProposalDropped("dropped"), Unavailable), (OutcomeUnknown("unknown"), ConnectionLost)],
)
def test_a_client_tries_again_after_an_error_of_raft_that_it_has_no_class_for(
    error: RaftwoodError, expected: type[RaftwoodError]
) -> None:
    ran = subprocess.run(
        (sys.executable, "-c", IN_A_CLIENT, encode_error(error).hex()),
        check=True,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert ran.stdout.strip() == expected.__name__


def test_a_class_that_both_sides_know_comes_out_as_it_went_in() -> None:
    for error in (OutcomeUnknown("a"), DiskFull("b"), InternalError("c"), RaftwoodError("d")):
        decoded = decode_error(encode_error(error))
        assert type(decoded) is type(error)
        assert decoded.message == error.message


def test_an_error_of_a_class_that_only_a_newer_program_has_is_its_nearest_known_ancestor() -> None:
    wire: object = (
        "of-the-future",
        "text",
        {},
        ("also-new", "disk_full", "unavailable"),
    )
    assert type(decode_error(msgspec.msgpack.encode(wire))) is DiskFull
    strange: object = ("of-the-future", "text", {}, ("also-new",))
    assert type(decode_error(msgspec.msgpack.encode(strange))) is InternalError
