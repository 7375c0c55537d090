"""Who is who: each way to fail, without a socket."""

import pickle
import random
from typing import Any

import msgspec
import pytest
from tests.kits.net.rpc import (
    CLIENT,
    CLUSTER,
    CREDENTIALS,
    NODE,
    OPERATOR,
    SECRET,
    SERVER_CREDENTIALS,
)

from raftwood.base.errors import (
    Conflict,
    InvalidConfiguration,
    InvalidName,
    NotLeader,
    ProtocolError,
    RaftwoodError,
    Unauthenticated,
    UnsupportedVersion,
)
from raftwood.base.settings import Secret
from raftwood.net.frames import Frame, FrameDecoder, FrameKind, encode_frame
from raftwood.net.handshake import (
    ClientCredentials,
    ClientHandshake,
    PeerLimits,
    ServerCredentials,
    ServerHandshake,
    Welcome,
)
from raftwood.net.identity import Identity, identity_of_certificate
from raftwood.net.limits import HANDSHAKE_BYTES_MAX
from raftwood.net.wire_errors import decode_error, encode_error

LIMITS = PeerLimits(1 << 20, 10, 1 << 20, 4)


def certificate_of(identity: Identity, cluster_id: str = CLUSTER) -> dict[str, Any]:
    return {
        "subject": (
            (("organizationName", cluster_id),),
            (("organizationalUnitName", identity.role),),
            (("commonName", identity.node_id),),
        )
    }


def client(**changes: Any) -> ClientHandshake:
    certificate = changes.pop("server_certificate", None)
    values = {"cluster_id": CLUSTER, "identity": CLIENT, "secret": SECRET, **changes}
    return ClientHandshake(
        ClientCredentials(**values), random.Random(1), server_certificate=certificate
    )


def server(seed: int = 2, certificate: Any = None) -> ServerHandshake:
    return ServerHandshake(SERVER_CREDENTIALS, random.Random(seed), LIMITS, certificate)


def frame(data: bytes) -> Frame:
    decoder = FrameDecoder(payload_bytes_max=HANDSHAKE_BYTES_MAX)
    (only,) = decoder.feed(data)
    return only


def shake(theirs: ClientHandshake, ours: ServerHandshake) -> Welcome:
    answer: bytes | Welcome = theirs.hello()
    while isinstance(answer, bytes):
        answer = theirs.received(frame(ours.received(frame(answer))))
    return answer


def test_both_sides_prove_the_secret() -> None:
    ours = server()
    welcome = shake(client(server=NODE), ours)
    assert ours.peer == CLIENT
    assert (welcome.role, welcome.node_id, welcome.limits) == ("node", "n1", LIMITS)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"secret": Secret(b"another secret of the client")}, Unauthenticated),
        ({"identity": OPERATOR}, Unauthenticated),
        ({"identity": Identity(role="node", node_id="c1")}, Unauthenticated),
        ({"identity": Identity(role="client", node_id="nobody")}, Unauthenticated),
        ({"cluster_id": "other"}, Unauthenticated),
        ({"secret": None}, Unauthenticated),
        ({"server": Identity(role="node", node_id="n2")}, Unauthenticated),
    ],
)
def test_a_wrong_part_of_the_credentials_is_refused(
    changes: dict[str, Any], expected: type[RaftwoodError]
) -> None:
    ours = server()
    with pytest.raises(expected):
        shake(client(**changes), ours)
    assert ours.peer is None


def test_an_unknown_identity_and_a_wrong_secret_are_refused_alike() -> None:
    messages = set()
    for changes in (
        {"secret": Secret(b"another secret of the client")},
        {"identity": Identity(role="client", node_id="nobody")},
    ):
        with pytest.raises(Unauthenticated) as refusal:
            shake(client(**changes), server())
        messages.add(refusal.value.message)
    assert len(messages) == 1


def test_a_refusal_leaks_neither_the_cluster_nor_a_secret() -> None:
    with pytest.raises(Unauthenticated) as refusal:
        shake(client(cluster_id="other"), server())
    assert CLUSTER not in refusal.value.message


def test_another_protocol_version_is_refused_before_its_payload_is_read() -> None:
    with pytest.raises(UnsupportedVersion, match="version 1, the client 2"):
        server().received(frame(encode_frame(FrameKind.HELLO, argument=2, payload=b"\xc1")))


def test_a_proof_cannot_be_replayed() -> None:
    theirs, first = client(), server(seed=2)
    hello = theirs.hello()
    proof = theirs.received(frame(first.received(frame(hello))))
    assert isinstance(proof, bytes)
    first.received(frame(proof))
    assert first.peer == CLIENT
    second = server(seed=3)
    second.received(frame(hello))
    with pytest.raises(Unauthenticated):
        second.received(frame(proof))


def test_a_client_is_not_fooled_by_its_own_proof_reflected() -> None:
    theirs = client()
    theirs.hello()
    ours = server()
    proof = theirs.received(frame(ours.received(frame(theirs.hello()))))
    assert isinstance(proof, bytes)
    # What a server that does not know the secret could send: the client's own digest.
    digest = frame(proof)[4][-32:]
    reflected = encode_frame(FrameKind.WELCOME, payload=_welcome(NODE, bytes(digest)))
    with pytest.raises(Unauthenticated):
        theirs.received(frame(reflected))


def test_a_server_is_not_fooled_by_its_own_frames_reflected() -> None:
    ours = server()
    challenge = ours.received(frame(client().hello()))
    with pytest.raises(ProtocolError):
        ours.received(frame(challenge))
    assert ours.peer is None


def test_a_server_that_skips_the_challenge_is_not_trusted() -> None:
    theirs = client()
    theirs.hello()
    with pytest.raises(Unauthenticated):
        theirs.received(frame(encode_frame(FrameKind.WELCOME, payload=_welcome(NODE, bytes(32)))))


def test_a_server_that_changes_its_identity_midway_is_not_trusted() -> None:
    theirs, ours = client(), server()
    proof = theirs.received(frame(ours.received(frame(theirs.hello()))))
    assert isinstance(proof, bytes)
    digest = frame(ours.received(frame(proof)))[4]
    position = bytes(digest).index(b"\xc4\x20") + 2
    forged = _welcome(Identity(role="node", node_id="n2"), bytes(digest)[position : position + 32])
    with pytest.raises(Unauthenticated):
        theirs.received(frame(encode_frame(FrameKind.WELCOME, payload=forged)))


def test_a_certificate_proves_an_identity() -> None:
    theirs = client(secret=None, server_certificate=certificate_of(NODE))
    ours = server(certificate=certificate_of(CLIENT))
    shake(theirs, ours)
    assert ours.peer == CLIENT


@pytest.mark.parametrize(
    "certificate",
    [
        None,
        certificate_of(OPERATOR),
        certificate_of(Identity(role="client", node_id="c2")),
        certificate_of(CLIENT, "other"),
        {"subject": ((("organizationName", CLUSTER),),)},
    ],
)
def test_a_certificate_of_somebody_else_is_refused(certificate: Any) -> None:
    ours = server(certificate=certificate)
    with pytest.raises(Unauthenticated):
        shake(client(secret=None, server_certificate=certificate_of(NODE)), ours)
    assert ours.peer is None


def test_a_server_certificate_of_somebody_else_is_refused() -> None:
    for stated in (None, certificate_of(OPERATOR)):
        theirs = client(secret=None, server_certificate=stated)
        with pytest.raises(Unauthenticated):
            shake(theirs, server(certificate=certificate_of(CLIENT)))


@pytest.mark.parametrize("kind", [kind for kind in FrameKind if kind != FrameKind.HELLO])
def test_nothing_but_hello_begins_a_handshake(kind: FrameKind) -> None:
    with pytest.raises(ProtocolError):
        server().received(frame(encode_frame(kind)))


@pytest.mark.parametrize("payload", [b"", b"\xc1", b"\x90", b"\x91" * 900, bytes(100)])
def test_a_malformed_hello_is_a_protocol_error(payload: bytes) -> None:
    with pytest.raises(ProtocolError):
        server().received(frame(encode_frame(FrameKind.HELLO, argument=1, payload=payload)))


def test_hello_comes_once() -> None:
    ours = server()
    hello = client().hello()
    ours.received(frame(hello))
    with pytest.raises(ProtocolError):
        ours.received(frame(hello))


def test_there_is_no_server_without_authentication() -> None:
    with pytest.raises(InvalidConfiguration):
        ServerCredentials(cluster_id=CLUSTER, identity=NODE)


def test_secrets_do_not_show() -> None:
    for shown in (repr(SECRET), str(SECRET), repr(CREDENTIALS), repr({CLIENT: SECRET})):
        assert "the secret" not in shown
    with pytest.raises(TypeError):
        pickle.dumps(SECRET)


def test_short_secrets_and_bad_names_are_refused() -> None:
    with pytest.raises(InvalidConfiguration):
        Secret(b"short").as_key()
    with pytest.raises(InvalidName):
        Identity(role="client", node_id="../etc")
    with pytest.raises(Unauthenticated):
        identity_of_certificate(
            {
                "subject": (
                    (("organizationName", CLUSTER), ("organizationalUnitName", "a b")),
                    (("commonName", "n"),),
                )
            },
            cluster_id=CLUSTER,
        )


def test_errors_come_back_as_their_class_and_unknown_ones_as_internal() -> None:
    error = decode_error(encode_error(UnsupportedVersion("too new")))
    assert type(error) is UnsupportedVersion
    assert error.message == "too new"
    assert decode_error(b"\x92\xa3new\xa1x").code == "internal_error"
    assert decode_error(b"\xc1").code == "internal_error"
    long = decode_error(encode_error(UnsupportedVersion("\udcff" + "€" * 9_000)))
    assert len(long.message.encode()) <= 512


def test_the_leader_travels_with_the_error_that_names_it() -> None:
    error = decode_error(encode_error(NotLeader("node 2 leads", leader=2)))
    assert isinstance(error, NotLeader)
    assert (error.message, error.leader) == ("node 2 leads", 2)


@pytest.mark.parametrize(
    ("sent", "leader"),
    [
        (("not_leader", "x"), 0),
        (("not_leader", "x", {}), 0),
        (("not_leader", "x", {"leader": 7, "since": [1, {"a": b""}]}, (), "newer"), 7),
        (("not_leader", "x", {"leader": "n7"}), 0),
        (("not_leader", "x", {"leader": True}), 0),
        (("not_leader", "x", {"message": "y"}), 0),
    ],
)
def test_fields_of_an_error_that_are_unknown_or_of_another_type_are_left_out(
    sent: tuple[object, ...], leader: int
) -> None:
    error = decode_error(msgspec.msgpack.encode(sent))
    assert isinstance(error, NotLeader)
    assert (error.message, error.leader) == ("x", leader)


def test_fields_of_a_class_that_has_none_are_left_out() -> None:
    error = decode_error(msgspec.msgpack.encode(("conflict", "x", {"leader": 7})))
    assert type(error) is Conflict


def _welcome(identity: Identity, digest: bytes) -> bytes:
    return msgspec.msgpack.encode(Welcome(identity.role, identity.node_id, digest, LIMITS))
