"""Signatures of SLS requests, versions 1 and 4, and login by them.

Pure functions over a request's parts compute the signed text and the signature; header names are in
lower case, parameters decoded. `signing_key` finds the key that signed a request, and `check_body`
refuses a body that differs from the signed one.
"""

import base64
import hashlib
import hmac
from collections.abc import Mapping
from datetime import UTC, datetime
from functools import lru_cache
from typing import Final
from urllib.parse import quote

import msgspec

from raftwood.base.environment import Clock
from raftwood.base.errors import Unauthenticated
from raftwood.base.files import Buffer
from raftwood.loghub.errors import SignatureMismatch
from raftwood.loghub.model import AccessKey
from raftwood.loghub.server.http import FindKey, HttpRequest

V4_ALGORITHM: Final = "SLS4-HMAC-SHA256"
_V4_REQUEST: Final = "aliyun_v4_request"
_SIGNED: Final = (b"x-log-", b"x-acs-")
_MONTHS: Final = "JanFebMarAprMayJunJulAugSepOctNovDec"


class SignedParts(msgspec.Struct, frozen=True, gc=False):
    """The parts that a signature covers; it covers a body by its digest in the headers."""

    method: str
    path: str
    parameters: Mapping[str, str]
    headers: Mapping[bytes, bytes]


class Credential(msgspec.Struct, frozen=True, gc=False):
    """The key and the scheme of a signature; only version 4 has a scope."""

    version: int
    key_id: str
    signature: str
    date: str = ""
    region: str = ""


def parse_authorization(text: str) -> Credential | None:
    """Parses `LOG id:signature`, `SLS id:signature`, or version 4; None for anything else."""
    scheme, _, rest = text.partition(" ")
    if scheme in ("LOG", "SLS"):
        key_id, colon, signature = rest.strip().partition(":")
        return Credential(1, key_id, signature) if colon else None
    if scheme != V4_ALGORITHM:
        return None
    fields = dict(part.strip().partition("=")[::2] for part in rest.split(","))
    scope = fields.get("Credential", "").rsplit("/", 4)
    if len(scope) != 5 or scope[3:] != ["sls", _V4_REQUEST]:
        return None
    return Credential(4, scope[0], fields.get("Signature", ""), date=scope[1], region=scope[2])


def signature_v1(secret: str, parts: SignedParts) -> str:
    """Signs by HMAC-SHA1, in base64."""
    headers = parts.headers
    lines = [
        parts.method.encode(),
        headers.get(b"content-md5", b""),
        headers.get(b"content-type", b""),
        # Some proxies drop the date; clients therefore send it twice, and sign it once.
        headers.get(b"date") or headers.get(b"x-log-date", b""),
    ]
    lines += [
        b"%b:%b" % (name, headers[name].strip())
        for name in sorted(headers)
        if _is_signed(name) and name != b"x-log-date"
    ]
    lines.append(_resource(parts.path, parts.parameters).encode())
    return base64.b64encode(hmac.digest(secret.encode(), b"\n".join(lines), "sha1")).decode()


def _is_signed(name: bytes) -> bool:
    return name.startswith(_SIGNED) and not name.startswith(b"x-log-meta-")


def _resource(path: str, parameters: Mapping[str, str]) -> str:
    if not parameters:
        return path
    return path + "?" + "&".join([f"{name}={parameters[name]}" for name in sorted(parameters)])


def signature_v4(secret: str, parts: SignedParts, *, date: str, region: str) -> str:
    """Signs by HMAC-SHA256, in hexadecimal; the signature covers the host as well."""
    headers = parts.headers
    names = sorted(
        name for name in headers if name in (b"content-type", b"host") or _is_signed(name)
    )
    request = b"\n".join(
        (
            parts.method.encode(),
            parts.path.encode(),
            _query_v4(parts.parameters).encode(),
            b"".join([b"%b:%b\n" % (name, headers[name].strip()) for name in names]),
            b";".join(names),
            headers.get(b"x-log-content-sha256", b""),
        )
    )
    scope = f"{date}/{region}/sls/{_V4_REQUEST}"
    text = b"\n".join(
        (
            V4_ALGORITHM.encode(),
            headers.get(b"x-log-date", b""),
            scope.encode(),
            hashlib.sha256(request).hexdigest().encode(),
        )
    )
    key = b"aliyun_v4" + secret.encode()
    for step in (date, region, "sls", _V4_REQUEST):
        key = hmac.digest(key, step.encode(), "sha256")
    return hmac.digest(key, text, "sha256").hex()


def _query_v4(parameters: Mapping[str, str]) -> str:
    return "&".join(
        [
            f"{name}={quote(parameters[name], safe='~')}" if parameters[name] else name
            for name in sorted(parameters)
        ]
    )


@lru_cache(maxsize=64)
def parse_date_v1(text: str) -> int | None:
    """Returns seconds since 1970 for `Mon, 16 Nov 2026 08:22:16 GMT`; None for anything else."""
    try:
        _, day, month, year, time, zone = text.split()
        hour, minute, second = time.split(":")
        place = _MONTHS.index(month)
        if zone != "GMT" or len(month) != 3 or place % 3:
            return None
        return _seconds(year, str(place // 3 + 1), day, hour, minute, second)
    except (ValueError, OverflowError):
        return None


def parse_date_v4(text: str) -> int | None:
    """Returns seconds since 1970 for `20261116T082216Z`; None for anything else."""
    if len(text) != 16 or text[8] != "T" or text[15] != "Z":
        return None
    try:
        return _seconds(text[:4], text[4:6], text[6:8], text[9:11], text[11:13], text[13:15])
    except (ValueError, OverflowError):
        return None


def _seconds(*numbers: str) -> int:
    if not all(number.isascii() and number.isdigit() and len(number) <= 4 for number in numbers):
        raise ValueError("not a number")
    year, month, day, hour, minute, second = map(int, numbers)
    return int(datetime(year, month, day, hour, minute, second, tzinfo=UTC).timestamp())


CLOCK_SKEW_S_MAX: Final = 15 * 60
_NOBODY: Final = "the secret of nobody, as long as a real one is"


def signing_key(request: HttpRequest, find: FindKey, clock: Clock) -> AccessKey:
    """Returns the key that signed the request, if the date is recent.

    An unknown key and a wrong secret get the same error, after the same work.
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


def _signature(request: HttpRequest, credential: Credential, secret: str) -> str:
    parts = SignedParts(request.method, request.path, request.parameters, request.headers)
    if credential.version == 1:
        return signature_v1(secret, parts)
    return signature_v4(secret, parts, date=credential.date, region=credential.region)


def _check_date(request: HttpRequest, credential: Credential, clock: Clock) -> None:
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


def check_body(request: HttpRequest, body: Buffer) -> None:
    """`SignatureMismatch` if the body is not the signed one."""
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
