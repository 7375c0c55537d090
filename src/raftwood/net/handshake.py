"""HELLO: identities of both sides and their proof, once per connection; state machines without I/O.

    client                                server
    HELLO      identity, nonce      ──▶
               ◀──  CHALLENGE             identity, nonce
    PROOF      HMAC "client"        ──▶
               ◀──  WELCOME               HMAC "server", limits

Both HMACs are over a digest of the whole HELLO and CHALLENGE, so they bind the protocol version,
the cluster, both identities and both nonces; the label keeps one side's proof from serving as the
other's. The client proves itself first: a server signs nothing for strangers, and an unknown
identity fails at the same step and with the same words as a wrong secret. With mutual TLS the
certificate is the proof, and WELCOME follows HELLO at once.

Nonces come from the randomness handed in; outside simulation that is a `random.SystemRandom`.
"""

import hashlib
import hmac
import random
from collections.abc import Callable, Mapping
from typing import Any, Literal, TypeVar

import msgspec

from raftwood.base.errors import (
    InvalidConfiguration,
    InvalidName,
    OtherServer,
    ProtocolError,
    Unauthenticated,
    UnsupportedVersion,
)
from raftwood.base.names import FRAME_BYTES_MAX
from raftwood.base.settings import Secret
from raftwood.net.frames import Frame, FrameKind, Payload, encode_frame
from raftwood.net.identity import Identity, identity_of_certificate
from raftwood.net.wire_errors import decode_error

PROTOCOL_VERSION = 1
NONCE_BYTES = 32
_CLIENT_LABEL = b"raftwood rpc client\0"
_SERVER_LABEL = b"raftwood rpc server\0"
_REFUSED = "the peer's identity or secret is not accepted: check the node id, role and secret"


class ClientCredentials(msgspec.Struct, frozen=True, kw_only=True):
    """A client's identity; without a secret, its TLS certificate must prove it."""

    cluster_id: str
    identity: Identity
    secret: Secret | None = None
    server: Identity | None = None
    """The expected server; None accepts any server that knows the secret."""


class ServerCredentials(msgspec.Struct, frozen=True, kw_only=True):
    """A server's identity, and its clients' proofs: secrets, certificates, or both."""

    cluster_id: str
    identity: Identity
    secret_of: Callable[[Identity], Secret | None] | None = None
    accepts_certificates: bool = False

    def __post_init__(self) -> None:
        if self.secret_of is None and not self.accepts_certificates:
            raise InvalidConfiguration(
                "a server authenticates every peer: give it secrets or let it accept certificates"
            )


class Hello(msgspec.Struct, array_like=True, frozen=True):
    """The payload of HELLO; the protocol version is the frame's argument."""

    cluster_id: str
    role: str
    node_id: str
    mechanism: Literal["secret", "certificate"]
    nonce: bytes
    frame_bytes_max: int
    """The largest payload that this client reads."""


class Challenge(msgspec.Struct, array_like=True, frozen=True):
    """The payload of CHALLENGE."""

    role: str
    node_id: str
    nonce: bytes


class Proof(msgspec.Struct, array_like=True, frozen=True):
    """The payload of PROOF."""

    digest: bytes


class PeerLimits(msgspec.Struct, array_like=True, frozen=True):
    """What the server lets one client have under way, sent once in WELCOME."""

    frame_bytes_max: int
    requests_in_flight_max: int
    bytes_in_flight_max: int
    streams_max: int


class Welcome(msgspec.Struct, array_like=True, frozen=True):
    """The payload of WELCOME; the digest is empty if a certificate was the proof."""

    role: str
    node_id: str
    digest: bytes
    limits: PeerLimits


_Message = TypeVar("_Message", bound=msgspec.Struct)
_encode = msgspec.msgpack.Encoder().encode
_decoders: dict[type, Any] = {
    message: msgspec.msgpack.Decoder(message) for message in (Hello, Challenge, Proof, Welcome)
}


def decode_message(message: type[_Message], payload: Payload) -> _Message:
    """Decodes one handshake message, or raises ProtocolError."""
    try:
        decoded: _Message = _decoders[message].decode(payload)
    except (msgspec.MsgspecError, ValueError, RecursionError) as error:
        raise ProtocolError(f"{message.__name__.upper()} cannot be read") from error
    if isinstance(decoded, Hello | Challenge) and len(decoded.nonce) != NONCE_BYTES:
        raise ProtocolError(f"{message.__name__.upper()} has a nonce of the wrong size")
    return decoded


def _identity(role: str, node_id: str) -> Identity:
    try:
        return Identity(role=role, node_id=node_id)
    except InvalidName as error:
        raise ProtocolError("the peer's role or node id is not a name") from error


def _transcript(version: int, hello: bytes, challenge: bytes) -> bytes:
    digest = hashlib.sha256()
    for part in (version.to_bytes(4, "little"), hello, challenge):
        digest.update(len(part).to_bytes(4, "little"))
        digest.update(part)
    return digest.digest()


class ClientHandshake:
    """The client's side: `hello()` first, then `received` for each frame until it is a Welcome."""

    def __init__(
        self,
        credentials: ClientCredentials,
        random_source: random.Random,
        *,
        frame_bytes_max: int = FRAME_BYTES_MAX,
        server_certificate: Mapping[str, Any] | None = None,
    ) -> None:
        self._credentials = credentials
        self._server_certificate = server_certificate
        self._hello = _encode(
            Hello(
                cluster_id=credentials.cluster_id,
                role=credentials.identity.role,
                node_id=credentials.identity.node_id,
                mechanism="certificate" if credentials.secret is None else "secret",
                nonce=random_source.randbytes(NONCE_BYTES),
                frame_bytes_max=frame_bytes_max,
            )
        )
        self._expected_digest: bytes | None = None
        self._challenger: Identity | None = None

    def hello(self) -> bytes:
        return encode_frame(FrameKind.HELLO, argument=PROTOCOL_VERSION, payload=self._hello)

    def received(self, frame: Frame) -> bytes | Welcome:
        """Returns the bytes to answer, or the Welcome that ends the handshake; raises a refusal."""
        kind, payload = frame[0], frame[4]
        if kind == FrameKind.ERROR:
            raise decode_error(payload)
        if kind == FrameKind.CHALLENGE and self._challenger is None:
            return self._prove(bytes(payload))
        if kind == FrameKind.WELCOME:
            return self._finish(decode_message(Welcome, payload))
        raise ProtocolError("the server sent something else before the handshake was finished")

    def _prove(self, payload: bytes) -> bytes:
        secret = self._credentials.secret
        if secret is None:
            raise ProtocolError("the server asks for a secret, and none was offered")
        challenge = decode_message(Challenge, payload)
        self._challenger = _identity(challenge.role, challenge.node_id)
        self._check_meant(self._challenger)
        transcript = _transcript(PROTOCOL_VERSION, self._hello, payload)
        self._expected_digest = secret.sign(_SERVER_LABEL + transcript)
        proof = Proof(secret.sign(_CLIENT_LABEL + transcript))
        return encode_frame(FrameKind.PROOF, payload=_encode(proof))

    def _finish(self, welcome: Welcome) -> Welcome:
        server = _identity(welcome.role, welcome.node_id)
        if self._credentials.secret is None:
            stated = identity_of_certificate(
                self._server_certificate, cluster_id=self._credentials.cluster_id
            )
            if stated != server:
                raise Unauthenticated("the server's certificate states another identity")
            self._check_meant(server)
        elif (
            self._expected_digest is None
            or server != self._challenger
            or not hmac.compare_digest(self._expected_digest, welcome.digest)
        ):
            raise Unauthenticated("the server did not prove that it knows the secret")
        return welcome

    def _check_meant(self, server: Identity) -> None:
        meant = self._credentials.server
        if meant is not None and meant != server:
            raise OtherServer(f"another server answers than {meant}: check the address")


class ServerHandshake:
    """The server's side: `received` answers each frame; `peer` is set once it is proved."""

    def __init__(
        self,
        credentials: ServerCredentials,
        random_source: random.Random,
        limits: PeerLimits,
        peer_certificate: Mapping[str, Any] | None = None,
    ) -> None:
        self._credentials = credentials
        self._random = random_source
        self._limits = limits
        self._certificate = peer_certificate
        self._claimed: Identity | None = None
        self._transcript = b""
        self.peer: Identity | None = None
        self.frame_bytes_max = 0
        """The largest payload that the peer reads."""

    def received(self, frame: Frame) -> bytes:
        """Returns the bytes to answer; raises the refusal to send before closing."""
        kind, argument, payload = frame[0], frame[3], frame[4]
        if kind == FrameKind.HELLO and self._claimed is None:
            return self._greet(argument, bytes(payload))
        if kind == FrameKind.PROOF and self._transcript and self.peer is None:
            return self._verify(decode_message(Proof, payload))
        raise ProtocolError("the handshake comes first: HELLO, then PROOF, each once")

    def _greet(self, version: int, payload: bytes) -> bytes:
        # The version is checked before the payload is read: a newer HELLO may look different.
        if version != PROTOCOL_VERSION:
            raise UnsupportedVersion(
                f"the server speaks protocol version {PROTOCOL_VERSION}, the client {version}: "
                "upgrade the older one"
            )
        hello = decode_message(Hello, payload)
        claimed = _identity(hello.role, hello.node_id)
        if hello.cluster_id != self._credentials.cluster_id:
            raise Unauthenticated("the server belongs to another cluster: check the cluster id")
        self._claimed = claimed
        self.frame_bytes_max = hello.frame_bytes_max
        if hello.mechanism == "certificate":
            return self._accept_certificate(claimed)
        own = self._credentials.identity
        challenge = _encode(Challenge(own.role, own.node_id, self._random.randbytes(NONCE_BYTES)))
        self._transcript = _transcript(version, payload, challenge)
        return encode_frame(FrameKind.CHALLENGE, payload=challenge)

    def _accept_certificate(self, claimed: Identity) -> bytes:
        if not self._credentials.accepts_certificates:
            raise Unauthenticated("the server does not accept certificates: use a secret")
        stated = identity_of_certificate(self._certificate, cluster_id=self._credentials.cluster_id)
        if stated != claimed:
            raise Unauthenticated("the certificate states another role or node id than HELLO")
        self.peer = claimed
        return self._welcome(b"")

    def _verify(self, proof: Proof) -> bytes:
        claimed, secret_of = self._claimed, self._credentials.secret_of
        secret = secret_of(claimed) if secret_of is not None and claimed is not None else None
        # An unknown identity is checked against a random secret, so that the answer takes as long.
        known = secret or Secret(self._random.randbytes(NONCE_BYTES))
        matches = hmac.compare_digest(known.sign(_CLIENT_LABEL + self._transcript), proof.digest)
        if secret is None or not matches:
            raise Unauthenticated(_REFUSED)
        self.peer = claimed
        return self._welcome(secret.sign(_SERVER_LABEL + self._transcript))

    def _welcome(self, digest: bytes) -> bytes:
        own = self._credentials.identity
        welcome = Welcome(own.role, own.node_id, digest, self._limits)
        return encode_frame(FrameKind.WELCOME, payload=_encode(welcome))
