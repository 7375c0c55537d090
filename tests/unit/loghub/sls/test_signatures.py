"""Signatures against those that SLS's own SDKs make: Python's by its code, Go's by its vectors."""

from collections.abc import Iterator
from hashlib import sha256
from typing import Any
from urllib.parse import parse_qsl, urlencode

import pytest

from raftwood.loghub.server.sls.signatures import (
    Credential,
    SignedParts,
    parse_authorization,
    parse_date_v1,
    parse_date_v4,
    signature_v1,
    signature_v4,
)
from tests.kits.loghub.sls_sdk import Request, Sdk, sls_sdk

KEY, SECRET = "mockAccessKeyID", "mockAccessKeySecret"
CASES: list[tuple[str, str, dict[str, Any], bytes]] = [
    ("GET", "/logstores", {}, b""),
    ("GET", "/", {"offset": "0", "size": "100", "resourceGroupId": ""}, b""),
    ("POST", "/logstores/app_log/shards/lb", {}, b"any bytes \x00\xff"),
    ("POST", "/logstores/app_log/shards/route", {"key": "0" * 32}, b"x"),
    ("GET", "/logstores/a/shards/0", {"type": "log", "cursor": "MTIz==", "count": 10}, b""),
    ("POST", "/logstores/a/consumergroups/g", {"consumer": "hö +&/~*", "forceSuccess": True}, b"x"),
]


@pytest.fixture(scope="module")
def sdk() -> Iterator[Sdk]:
    with sls_sdk() as found:
        yield found


def sdk_headers(body: bytes) -> dict[str, str]:
    headers = {
        "Host": "p.sls.test",
        "x-log-bodyrawsize": str(len(body)),
        "x-log-apiversion": "0.6.0",
        "x-log-meta-of-mine": "not signed",
        "User-Agent": "sdk",
    }
    return headers | ({"Content-Type": "application/x-protobuf"} if body else {})


def as_received(
    method: str, path: str, parameters: dict[str, Any], headers: dict[str, str]
) -> SignedParts:
    """Over the wire: encoded by the client, decoded here."""
    query = dict(parse_qsl(urlencode(parameters), keep_blank_values=True))
    raw = {name.lower().encode(): value.encode() for name, value in headers.items()}
    return SignedParts(method, path, query, raw)


@pytest.mark.needs("sls_python")
@pytest.mark.parametrize(("method", "path", "parameters", "body"), CASES)
def test_version_1_is_that_of_the_python_sdk(
    sdk: Sdk, method: str, path: str, parameters: dict[str, Any], body: bytes
) -> None:
    headers = sdk.sign(1, (method, path, parameters, sdk_headers(body), body), KEY, SECRET)
    credential = parse_authorization(headers.pop("Authorization"))
    received = as_received(method, path, parameters, headers)
    assert credential == Credential(1, KEY, signature_v1(SECRET, received))
    assert signature_v1(SECRET + "x", received) != credential.signature


@pytest.mark.needs("sls_python")
@pytest.mark.parametrize(("method", "path", "parameters", "body"), CASES)
def test_version_4_is_that_of_the_python_sdk(
    sdk: Sdk, method: str, path: str, parameters: dict[str, Any], body: bytes
) -> None:
    request = (method, path, parameters, sdk_headers(body), body)
    headers = sdk.sign(4, request, KEY, SECRET, region="cn-hangzhou")
    credential = parse_authorization(headers.pop("Authorization"))
    assert credential is not None
    assert (credential.version, credential.key_id, credential.region) == (4, KEY, "cn-hangzhou")
    received = as_received(method, path, parameters, headers)
    assert credential.signature == signature_v4(
        SECRET, received, date=credential.date, region=credential.region
    )


@pytest.mark.needs("sls_python")
def test_a_security_token_is_signed_in_both_versions(sdk: Sdk) -> None:
    for version in (1, 4):
        request: Request = ("POST", "/", {}, sdk_headers(b"x"), b"x")
        headers = sdk.sign(version, request, KEY, SECRET, "a token", region="r")
        credential = parse_authorization(headers.pop("Authorization"))
        received = as_received("POST", "/", {}, headers)
        assert credential is not None
        made = (
            signature_v1(SECRET, received)
            if credential.version == 1
            else signature_v4(SECRET, received, date=credential.date, region="r")
        )
        assert made == credential.signature


@pytest.mark.parametrize(
    ("path", "headers", "signature"),
    [
        ("/logstores", {"x-log-bodyrawsize": "0"}, "Rwm6cTKzoti4HWoe+GKcb6Kv07E="),
        (
            "/logstores/app_log",
            {
                "x-log-bodyrawsize": "50",
                "content-md5": "8D6881250FF5559F59BBDF04100F6E59",
                "content-type": "application/x-protobuf",
                "content-length": "50",
            },
            "87xQWqFaOSewqRIma8kPjGYlXHc=",
        ),
    ],
)
def test_version_1_is_that_of_the_go_sdk(
    path: str, headers: dict[str, str], signature: str
) -> None:
    all_headers = headers | {
        "x-log-apiversion": "0.6.0",
        "x-log-signaturemethod": "hmac-sha1",
        "date": "Mon, 3 Jan 2010 08:33:47 GMT",
    }
    assert signature_v1(SECRET, as_received("GET", path, {}, all_headers)) == signature


GO_HEADERS = {"hello": "world", "x-log-test": "het123", "x-acs-ppp": "dds"}
GO_PARAMETERS = {" abc": "efg", " agc ": "", "": "efg", "A-bc": "eFg"}


@pytest.mark.parametrize(
    ("method", "body", "headers", "parameters", "region", "signature"),
    [
        ("POST", b"adasd= -asd zcas", GO_HEADERS, GO_PARAMETERS, "cn-hangzhou",
         "a98f5632e93836e63839cd836a54055f480020a9364ca944e2d34f2eb9bf1bed"),
        ("POST", b"adasd= -asd zcas", {}, {}, "cn-shanghai",
         "8a10a5e723cb2e75964816de660b2c16a58af8bc0261f7f0722d832468c76ce8"),
        ("POST", b"", GO_HEADERS, GO_PARAMETERS, "cn-hangzhou",
         "5a66d8f8051983e0e9d08e0f960ef9252ef971eead5bb5c7acec8617a2eb2701"),
        ("GET", b"", GO_HEADERS, GO_PARAMETERS, "cn-hangzhou",
         "d92741852500791d662a8d469ff61627c0559ecd86c3f59b7bf6772b6c62666a"),
    ],
)  # fmt: skip
def test_version_4_is_that_of_the_go_sdk(
    method: str,
    body: bytes,
    headers: dict[str, str],
    parameters: dict[str, str],
    region: str,
    signature: str,
) -> None:
    all_headers = headers | {
        "x-log-date": "20220808T032330Z",
        "x-log-content-sha256": sha256(body).hexdigest(),
    }
    received = as_received(method, "/logstores", parameters, all_headers)
    assert signature_v4("zxasdasdasw2", received, date="20220808", region=region) == signature


@pytest.mark.parametrize(
    "text",
    [
        "",
        "LOG",
        "LOG nobody",
        "Basic eDp5",
        "SLS4-HMAC-SHA256",
        "SLS4-HMAC-SHA256 Credential=ak/20220808/sls/aliyun_v4_request,Signature=x",
        "SLS4-HMAC-SHA256 Credential=ak/20220808/r/oss/aliyun_v4_request,Signature=x",
        "SLS4-HMAC-SHA256 Signature=x",
        "\xff:\xff",
    ],
)
def test_what_is_no_authorization_is_none(text: str) -> None:
    assert parse_authorization(text) is None


def test_dates_are_read_as_the_sdks_write_them() -> None:
    assert parse_date_v1("Mon, 3 Jan 2010 08:33:47 GMT") == 1262507627
    assert parse_date_v1("Thu, 01 Jan 1970 00:00:00 GMT") == 0
    assert parse_date_v4("20100103T083347Z") == 1262507627


@pytest.mark.parametrize(
    "text",
    [
        "",
        "now",
        "Mon, 3 Jan 2010 08:33:47 CET",
        "Mon, 3 anF 2010 08:33:47 GMT",
        "Mon, 31 Feb 2010 08:33:47 GMT",
        "Mon, 3 Jan 99999 08:33:47 GMT",
        "Mon, 3 Jan 0 08:33:47 GMT",
        "Mon, ٣ Jan 2010 08:33:47 GMT",
        "20100103T083347",
        "2010-103T083347Z",
        "20101303T083347Z",
        "2010010 T083347Z",
    ],
)
def test_what_is_no_date_is_none(text: str) -> None:
    assert parse_date_v1(text) is None
    assert parse_date_v4(text) is None
