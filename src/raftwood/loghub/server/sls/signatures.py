"""Signatures of SLS requests, versions 1 and 4: what is signed, and the signature itself.

Pure functions over a request's parts; header names are in lower case, parameters decoded.
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

V4_ALGORITHM: Final = "SLS4-HMAC-SHA256"
_V4_REQUEST: Final = "aliyun_v4_request"
_SIGNED: Final = (b"x-log-", b"x-acs-")
_MONTHS: Final = "JanFebMarAprMayJunJulAugSepOctNovDec"


class SignedParts(msgspec.Struct, frozen=True, gc=False):
    """What a signature covers; a body is covered by its digest in the headers."""

    method: str
    path: str
    parameters: Mapping[str, str]
    headers: Mapping[bytes, bytes]


class Credential(msgspec.Struct, frozen=True, gc=False):
    """Who signed, and how; a scope only in version 4."""

    version: int
    key_id: str
    signature: str
    date: str = ""
    region: str = ""


def parse_authorization(text: str) -> Credential | None:
    """`LOG id:signature`, `SLS id:signature`, or version 4; None for anything else."""
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
    """Of HMAC-SHA1, in base64."""
    headers = parts.headers
    lines = [
        parts.method.encode(),
        headers.get(b"content-md5", b""),
        headers.get(b"content-type", b""),
        # Some proxies drop the date; clients send it twice for that, and sign it once.
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
    """Of HMAC-SHA256, in hexadecimal; covers the host as well."""
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
    """Seconds since 1970 of `Mon, 16 Nov 2026 08:22:16 GMT`; None for anything else."""
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
    """Seconds since 1970 of `20261116T082216Z`; None for anything else."""
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
