"""The frame decoder and the parsers of HELLO and of errors, as targets for a mutator.

The targets raise only on a bug. A decoder may answer with frames, ask for more or
raise ProtocolError; it may do nothing else, and never allocates above its limit.
"""

import contextlib
import random

import msgspec

from raftwood.base.errors import NotLeader, ProtocolError, RaftwoodError, Unauthenticated
from raftwood.base.settings import Secret
from raftwood.net.frames import HEADER_BYTES, TAIL_BYTES, FrameDecoder, FrameKind, encode_frame
from raftwood.net.handshake import (
    PROTOCOL_VERSION,
    Challenge,
    ClientCredentials,
    ClientHandshake,
    PeerLimits,
    Proof,
    ServerCredentials,
    ServerHandshake,
    Welcome,
    decode_message,
)
from raftwood.net.identity import Identity
from raftwood.net.limits import HANDSHAKE_BYTES_MAX
from raftwood.net.wire_errors import decode_error, encode_error

PAYLOAD_BYTES_MAX = 1 << 16
_SECRET = Secret(bytes(range(32)))
_CLIENT = ClientCredentials(
    cluster_id="fuzz", identity=Identity(role="client", node_id="c"), secret=_SECRET
)
_SERVER = ServerCredentials(
    cluster_id="fuzz", identity=Identity(role="node", node_id="n"), secret_of=lambda _: _SECRET
)
_RANDOM = random.Random(0)
_LIMITS = PeerLimits(1 << 20, 64, 1 << 20, 8)


def target(data: bytes) -> None:
    """Feed the bytes in two pieces; the first byte says where they are cut."""
    decoder = FrameDecoder(payload_bytes_max=PAYLOAD_BYTES_MAX, receive_bytes=TAIL_BYTES)
    cut = data[0] if data else 0
    try:
        frames = decoder.feed(data[1:cut]) + decoder.feed(data[max(cut, 1) :])
    except ProtocolError:
        return
    for kind, method, request_id, argument, payload in frames:
        again = encode_frame(
            kind, method=method, request_id=request_id, argument=argument, payload=payload
        )
        assert again in data, "a frame came out that did not go in"
    assert len(decoder.get_buffer()) <= PAYLOAD_BYTES_MAX + TAIL_BYTES
    assert len(decoder.get_buffer()) > 0


def seeds() -> list[bytes]:
    """Valid inputs for `target`."""
    frames = [
        encode_frame(FrameKind.REQUEST, method=7, request_id=1, argument=100, payload=b"payload"),
        encode_frame(FrameKind.RESPONSE, request_id=1, payload=bytes(200)),
        encode_frame(FrameKind.PING),
        encode_frame(FrameKind.ONE_WAY, method=8, payload=bytes(50)),
        encode_frame(FrameKind.CREDIT, request_id=9, argument=1 << 20),
        encode_frame(FrameKind.ERROR, request_id=3, payload=encode_error(ProtocolError("why"))),
        encode_frame(FrameKind.STREAM_ITEM, request_id=9, payload=bytes(6_000)),
    ]
    inputs = [bytes([40]) + frame for frame in frames]
    inputs += [bytes([cut]) + b"".join(frames[:5]) for cut in (0, 1, 33, 70, 255)]
    return inputs


def hello_target(data: bytes) -> None:
    """Read the bytes as each handshake message; as HELLO, by a server that knows nobody yet."""
    for message in (Challenge, Proof, Welcome):
        with contextlib.suppress(ProtocolError):
            decode_message(message, data)
    server = ServerHandshake(_SERVER, _RANDOM, _LIMITS)
    try:
        answer = server.received((FrameKind.HELLO, 0, 0, PROTOCOL_VERSION, data))
    except (ProtocolError, Unauthenticated):
        return
    assert len(answer) <= HEADER_BYTES + HANDSHAKE_BYTES_MAX
    assert server.peer is None, "a stranger got in with one frame"


def hello_seeds() -> list[bytes]:
    """Valid inputs for `hello_target`: the payloads of one whole handshake."""
    client = ClientHandshake(_CLIENT, random.Random(1))
    server = ServerHandshake(_SERVER, random.Random(2), _LIMITS)
    payloads = []
    answer: bytes | Welcome = client.hello()
    while isinstance(answer, bytes):
        (sent,) = FrameDecoder().feed(answer)
        (received,) = FrameDecoder().feed(server.received(sent))
        payloads += [bytes(sent[4]), bytes(received[4])]
        answer = client.received(received)
    return payloads


def error_target(data: bytes) -> None:
    """Any bytes are an error of some class, which says the same when it is passed on."""
    error = decode_error(data)
    assert isinstance(error, RaftwoodError)
    again = decode_error(encode_error(error))
    assert type(again) is type(error)
    for name, kind in error.wire_fields.items():
        assert type(getattr(error, name)) is kind
        assert getattr(again, name) == getattr(error, name)


def error_seeds() -> list[bytes]:
    """Valid inputs for `error_target`, one from a newer peer among them."""
    newer = ("not_leader", "why", {"leader": 2, "since": "today", "terms": [1, {"a": None}]}, 4)
    return [
        encode_error(ProtocolError("why")),
        encode_error(NotLeader("node 2 leads", leader=2)),
        encode_error(NotLeader("nobody leads", leader=(1 << 64) - 1)),
        msgspec.msgpack.encode(newer),
    ]
