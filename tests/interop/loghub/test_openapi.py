"""The OpenAPI description is true: its paths are the routes, and what is generated from it is
answered as it says.
"""

import re
from collections import Counter
from collections.abc import Iterator
from email.utils import formatdate
from hashlib import md5
from pathlib import Path
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit

import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_schema_conformance,
    status_code_conformance,
)

import raftwood
from raftwood.loghub.server.sls.api import SlsRoutes
from raftwood.loghub.server.sls.openapi import openapi_document, openapi_json
from raftwood.loghub.server.sls.signatures import SignedParts, signature_v1
from tests.kits.loghub.gateways import ThreadedGateway, http_gateway, threaded_gateway
from tests.kits.running import run

DOCUMENT = openapi_document()
CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_schema_conformance,
]
EXISTING = {"logstore": "s", "shard": 0, "group": "g"}
statuses: Counter[int] = Counter()
schema = schemathesis.openapi.from_dict(DOCUMENT)
OPERATIONS = [
    (path, method)
    for path, methods in DOCUMENT["paths"].items()
    for method in methods
    if method in {"get", "post", "put", "delete"}
]


@schemathesis.serializer("application/x-protobuf", "application/vnd.apache.arrow.stream")
def as_it_is(context: Any, value: Any) -> bytes:  # noqa: ARG001
    data = getattr(value, "data", value)
    return data if isinstance(data, bytes) else str(data).encode()


def test_the_copy_in_docs_is_of_now() -> None:
    copy = Path(raftwood.__file__).parents[2] / "docs" / "loghub-openapi.json"
    assert copy.read_text() == openapi_json().decode() + "\n", (
        "run `raftwood gateway openapi > docs/loghub-openapi.json`"
    )


def test_it_has_every_route_and_no_other(tmp_path: Path) -> None:
    async def main() -> None:
        async with http_gateway(tmp_path) as served:
            routes = SlsRoutes(served.kit.environment, served.gateway, body_bytes_max=1)
            told = {
                f"{method.upper()} {re.sub(r'{[a-z]+}', '*', path)}"
                for path, methods in DOCUMENT["paths"].items()
                for method in methods
            }
            assert told == set(routes._routes)

    run(main())


def test_anybody_may_read_it(tmp_path: Path) -> None:
    async def main() -> None:
        async with http_gateway(tmp_path) as served:
            answer = await served.raw(
                b"GET /openapi.json HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n"
            )
            assert answer.startswith(b"HTTP/1.1 200 ")
            assert answer.endswith(openapi_json())

    run(main())


@pytest.fixture(scope="module")
def gateway(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ThreadedGateway]:
    with threaded_gateway(tmp_path_factory.mktemp("gateway")) as served:
        served.run(served.gateway.catalog.create_project("p"))
        served.run(served.gateway.catalog.create_logstore("p", "s", shard_count=1))
        yield served
    assert statuses.keys() <= {200, 400, 404, 409, 413}, statuses


class Signed(requests.auth.AuthBase):
    """Signs what is about to be sent."""

    def __init__(self, gateway: ThreadedGateway) -> None:
        self._key = gateway.admin

    def __call__(self, request: Any) -> Any:
        body = request.body or b""
        body = body.encode() if isinstance(body, str) else body
        headers = request.headers
        headers["Host"] = "p.sls.test"
        headers["Date"] = formatdate(usegmt=True)
        headers["Content-MD5"] = md5(body).hexdigest().upper()
        target = urlsplit(request.url)
        parts = SignedParts(
            request.method,
            unquote(target.path),
            dict(parse_qsl(target.query, keep_blank_values=True)),
            {
                name.lower().encode(): value.encode() if isinstance(value, str) else value
                for name, value in headers.items()
            },
        )
        signature = signature_v1(self._key.secret, parts)
        headers["Authorization"] = f"LOG {self._key.id}:{signature}"
        return request


@pytest.mark.parametrize(("path", "method"), OPERATIONS)
def test_what_is_generated_from_it_is_answered_as_it_says(
    path: str, method: str, gateway: ThreadedGateway
) -> None:
    @settings(
        max_examples=4,
        deadline=None,
        derandomize=True,
        database=None,
        phases=[Phase.explicit, Phase.generate],
        suppress_health_check=list(HealthCheck),
    )
    @given(case=schema[path][method].as_strategy())
    def is_answered(case: Any) -> None:
        if case.path_parameters and case.method != "DELETE" and sum(statuses.values()) % 3:
            case.path_parameters = {name: EXISTING[name] for name in case.path_parameters}
        answer = case.call(base_url=f"http://{gateway.address}", auth=Signed(gateway))
        case.validate_response(answer, checks=CHECKS)
        assert answer.headers["x-log-requestid"]
        statuses[answer.status_code] += 1

    is_answered()
