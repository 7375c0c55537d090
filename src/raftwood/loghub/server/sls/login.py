"""Who sent a request, by its signature; and whether the body is the one that was signed."""

import hashlib
import hmac
from typing import Final

from raftwood.base.environment import Clock
from raftwood.base.errors import Unauthenticated
from raftwood.base.files import Buffer
from raftwood.loghub.errors import SignatureMismatch
from raftwood.loghub.model import AccessKey
from raftwood.loghub.server.http.keys import FindKey
from raftwood.loghub.server.http.request import Request
from raftwood.loghub.server.sls.signatures import (
    Credential,
    SignedParts,
    parse_authorization,
    parse_date_v1,
    parse_date_v4,
    signature_v1,
    signature_v4,
)

CLOCK_SKEW_S_MAX: Final = 15 * 60
_NOBODY: Final = "the secret of nobody, as long as a real one is"


def signing_key(request: Request, find: FindKey, clock: Clock) -> AccessKey:
    """The key that signed the request, which was not long ago.

    An unknown key and a wrong secret are told alike, after the same work.
    """
    credential = parse_authorization(request.header(b"authorization"))
    if credential is None:
        raise Unauthenticated(
            "the request is not signed: send `Authorization` as SLS clients do, `LOG id:signature` "
            "or version 4"
        )
    _check_date(request, credential, clock)
    key = find(credential.key_id)
    expected = _signature(request, credential, _NOBODY if key is None else key.secret)
    is_right = hmac.compare_digest(expected.encode(), credential.signature.encode())
    if key is None or not is_right:
        raise SignatureMismatch(
            f"the signature is not that of key {credential.key_id[:140]!r}, or there is no such "
            "key: check its id and its secret"
        )
    return key


def _signature(request: Request, credential: Credential, secret: str) -> str:
    parts = SignedParts(request.method, request.path, request.parameters, request.headers)
    if credential.version == 1:
        return signature_v1(secret, parts)
    return signature_v4(secret, parts, date=credential.date, region=credential.region)


def _check_date(request: Request, credential: Credential, clock: Clock) -> None:
    if credential.version == 1:
        text = request.header(b"date") or request.header(b"x-log-date")
        signed_s = parse_date_v1(text)
    else:
        text = request.header(b"x-log-date")
        signed_s = parse_date_v4(text) if text[:8] == credential.date else None
    if signed_s is None:
        raise Unauthenticated(f"the date {text[:60]!r} cannot be read: send it as SLS clients do")
    if abs(clock.wall_ns() // 1_000_000_000 - signed_s) > CLOCK_SKEW_S_MAX:
        raise Unauthenticated(
            f"the request was signed on {text[:60]}, too far from now: set the client's clock"
        )


def check_body(request: Request, body: Buffer) -> None:
    """`SignatureMismatch` where the body is another one than was signed."""
    digest = request.headers.get(b"x-log-content-sha256")
    if digest is not None:
        is_right = digest.lower() == hashlib.sha256(body).hexdigest().encode()
    else:
        digest = request.headers.get(b"content-md5", b"")
        md5 = hashlib.md5(body, usedforsecurity=False).hexdigest().encode()
        is_right = digest.lower() == md5 if body or digest else True
    if not is_right:
        raise SignatureMismatch(
            "the body is not the one that was signed: send its digest as Content-MD5, or as "
            "x-log-content-sha256"
        )
