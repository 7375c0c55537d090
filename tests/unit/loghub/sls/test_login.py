"""Who gets in over HTTP: signatures of now by keys that exist, and nobody else."""

from email.utils import formatdate
from pathlib import Path
from time import time
from typing import Any

import msgspec
import pytest

from tests.kits.loghub.gateways import HttpGateway, http_gateway, parsed_answer
from tests.kits.loghub.sls_sdk import Request, sls_sdk
from tests.kits.running import run


@pytest.mark.parametrize("skew_s", [-901, 901, -1_000_000_000])
def test_a_signature_of_another_time_is_refused(tmp_path: Path, skew_s: int) -> None:
    async def main() -> None:
        async with http_gateway(tmp_path) as served:
            date = formatdate(time() + skew_s, usegmt=True)
            answer = await served.ask("GET", "/", headers={"date": date})
            assert (answer.status, answer.code) == (401, "Unauthorized")
            date = formatdate(time() + (890 if skew_s > 0 else -890), usegmt=True)
            assert (await served.ask("GET", "/", headers={"date": date})).status == 200

    run(main())


def test_an_unknown_key_and_a_wrong_secret_are_told_alike(tmp_path: Path) -> None:
    async def main() -> None:
        async with http_gateway(tmp_path) as served:
            answers = []
            for wrong in ({"secret": "x"}, {"id": "x" * len(served.admin.id)}):
                key = msgspec.structs.replace(served.admin, **wrong)
                answer = await served.ask("GET", "/", key=key)
                assert (answer.status, answer.code) == (401, "SignatureNotMatch")
                answers.append(answer.json()["errorMessage"].replace(key.id, ""))
            assert answers[0] == answers[1]

    run(main())


@pytest.mark.parametrize(
    "authorization",
    ["", "LOG", "LOG :", "LOG x:\xff", "SLS4-HMAC-SHA256 Credential=a/b/c/sls/aliyun_v4_request"],
)
def test_without_a_signature_nobody_gets_in(tmp_path: Path, authorization: str) -> None:
    async def main() -> None:
        async with http_gateway(tmp_path) as served:
            for path in ("/logstores", "/logstores/s/shards/lb", "/logstores/s/nothing"):
                answer = await raw_ask(served, "POST", path, {"authorization": authorization})
                assert answer.status == 401
                assert answer.code in ("Unauthorized", "SignatureNotMatch")

    run(main())


async def raw_ask(served: HttpGateway, method: str, path: str, headers: dict[str, str]) -> Any:
    lines = [f"{method} {path} HTTP/1.1", "connection: close", "host: p.sls.test"]
    lines += [f"{name}: {value}" for name, value in headers.items() if name.lower() != "host"]
    return parsed_answer(await served.raw("\r\n".join([*lines, "", ""]).encode("latin-1")))


@pytest.mark.needs("sls_python")
def test_version_4_covers_the_host_and_its_date(tmp_path: Path) -> None:
    async def main() -> None:
        async with http_gateway(tmp_path) as served:
            given = {"Host": "p.sls.test", "x-log-bodyrawsize": "0"}
            request: Request = ("GET", "/logstores", {}, given, b"")
            with sls_sdk() as sdk:
                headers = sdk.sign(4, request, served.admin.id, served.admin.secret, region="r")
            answer = await raw_ask(served, "GET", "/logstores", headers)
            assert (answer.status, answer.code) == (404, "ProjectNotExist"), "signed rightly"
            for wrong in (
                {"Host": "q.sls.test"},
                {"x-log-bodyrawsize": "1"},
                {"x-acs-more": "x"},
                {"x-log-content-sha256": "0" * 64},
            ):
                changed = headers | wrong
                lines = ["GET /logstores HTTP/1.1", "connection: close"]
                lines += [f"{name}: {value}" for name, value in changed.items()]
                data = "\r\n".join([*lines, "", ""]).encode()
                assert parsed_answer(await served.raw(data)).code == "SignatureNotMatch"
            old = headers | {"x-log-date": "20200101T000000Z"}
            assert (await raw_ask(served, "GET", "/logstores", old)).status == 401

    run(main())


@pytest.mark.needs("sls_python")
def test_a_proxy_may_drop_the_date(tmp_path: Path) -> None:
    async def main() -> None:
        async with http_gateway(tmp_path) as served:
            request = ("GET", "/", {"size": "10"}, {"x-log-bodyrawsize": "0"}, b"")
            with sls_sdk() as sdk:
                headers = sdk.sign(1, request, served.admin.id, served.admin.secret)
            del headers["Date"]
            answer = await raw_ask(served, "GET", "/?size=10", headers)
            assert answer.status == 200

    run(main())
