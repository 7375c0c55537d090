"""Ways in over HTTP: who is let in, which logstore is meant, errors as each protocol has them."""

import asyncio
import base64
import gzip
import http.client
import json
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import cramjam
import msgspec
import pytest
import zstandard
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import (
    ExportLogsServiceRequest,
    ExportLogsServiceResponse,
)

from raftwood.base.errors import DeadlineExceeded, DiskFull, Overloaded, RaftwoodError, Unavailable
from raftwood.loghub.decode_bounds import RECORDS_MAX
from raftwood.loghub.errors import QuotaExceeded
from raftwood.loghub.model import AccessKey, AccessRole
from raftwood.loghub.server.ways_in import json_lines, loki
from raftwood.loghub.server.ways_in.http_way import status_of
from raftwood.loghub.server.ways_in.records import SLICE_RECORDS, RecordSection, gathered
from raftwood.loghub.server.ways_in.settings import WaysInSettings
from raftwood.loghub.settings import GatewaySettings
from tests.kits.fuzz import ways_in as targets
from tests.kits.loghub.long_work import count_long_work
from tests.kits.loghub.ways_in import LOGSTORE, NOW_NS, PROJECT, WaysInKit, ways_in_kit
from tests.kits.running import run
from tests.kits.turns import counting

LINES = f"/api/v1/projects/{PROJECT}/logstores/{LOGSTORE}/lines"
BULK = b'{"create": {}}\n{"message": "a"}\n'


class Answered(msgspec.Struct):
    """What came back."""

    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


def basic(key: AccessKey, secret: str | None = None) -> dict[str, str]:
    both = f"{key.id}:{key.secret if secret is None else secret}"
    return {"Authorization": f"Basic {base64.b64encode(both.encode()).decode()}"}


async def ask(
    kit: WaysInKit,
    path: str,
    body: bytes = b"",
    method: str = "POST",
    key: AccessKey | None = None,
    **headers: str,
) -> Answered:
    """With the writer's key, where no Authorization and no other key is given."""
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    if "Authorization" not in sent:
        sent |= basic(key or kit.writer)

    def exchange() -> Answered:
        connection = http.client.HTTPConnection("127.0.0.1", kit.port, timeout=10)
        try:
            connection.request(method, path, body, sent)
            answer = connection.getresponse()
            found = {name.lower(): value for name, value in answer.getheaders()}
            return Answered(answer.status, found, answer.read())
        finally:
            connection.close()

    return await asyncio.to_thread(exchange)


def test_lines_are_stored_and_counted(tmp_path: Path) -> None:
    async def main() -> None:
        async with ways_in_kit(tmp_path) as kit:
            body = b'{"a": "1"}\n{"a": "2"}\n'
            answer = await ask(kit, LINES, body)
            assert (answer.status, answer.json) == (200, {"records": 2})
            answer = await ask(kit, LINES, gzip.compress(body), Content_Encoding="gzip")
            assert answer.json == {"records": 2}
            answer = await ask(kit, LINES, b"")
            assert answer.json == {"records": 0}
            stored = await kit.stored()
            assert len(stored) == 4
            assert stored[0].source == "127.0.0.1"

    run(main())


def test_more_than_a_batch_holds_is_stored_as_several_in_order(tmp_path: Path) -> None:
    async def main() -> None:
        async with ways_in_kit(tmp_path) as kit:
            lines = [json.dumps({"n": number, "x": "x" * 1_000}) for number in range(6_000)]
            answer = await ask(kit, LINES, "\n".join(lines).encode(), X_Raftwood_Key="one")
            assert answer.json == {"records": 6_000}
            assert kit.gateway.metrics.put_batches == 2
            numbers = [int(each.contents["n"]) for each in await kit.stored()]
            assert numbers == list(range(6_000))

    run(main())


def test_records_of_one_key_stay_in_order(tmp_path: Path) -> None:
    async def main() -> None:
        async with ways_in_kit(tmp_path) as kit:
            for number in range(10):
                body = json.dumps({"number": number}).encode()
                answer = await ask(kit, LINES, body, X_Raftwood_Key="customer-1")
                assert answer.status == 200
            numbers = [int(each.contents["number"]) for each in await kit.stored()]
            assert numbers == list(range(10))

    run(main())


def test_a_request_with_a_bad_line_stores_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        async with ways_in_kit(tmp_path) as kit:
            answer = await ask(kit, LINES, b'{"a": "1"}\n{"a": \n')
            assert answer.status == 400
            assert answer.json["error"]["code"] == "invalid_input"
            assert "line 2" in answer.json["error"]["message"]
            assert await kit.stored() == []

    run(main())


def test_only_who_may_write_is_let_in(tmp_path: Path) -> None:
    async def main() -> None:
        async with ways_in_kit(tmp_path) as kit:
            writer = kit.writer
            both = f"{writer.id}:{writer.secret}"
            good = [
                f"Bearer {both}",
                f"ApiKey {base64.b64encode(both.encode()).decode()}",
                basic(writer)["Authorization"],
            ]
            for login in good:
                answer = await ask(kit, LINES, b'{"a": 1}', Authorization=login)
                assert answer.status == 200
            bad = ["", "Bearer", "Basic x", f"Bearer {writer.id}:", f"Bearer {writer.id}:x", "LOG"]
            for login in bad:
                answer = await ask(kit, LINES, b'{"a": 1}', Authorization=login)
                assert answer.status == 401
                # One who sends nothing is not told that it is wrong.
                has_key = login.startswith("Bearer ")
                expected = "secret is wrong" if has_key else "has no access key"
                assert expected in answer.body.decode(), login
                assert answer.headers["www-authenticate"].startswith("Basic")
            answer = await ask(kit, LINES, b'{"a": 1}', key=kit.reader)
            assert answer.status == 403
            other = await kit.gateway.access.create({"other": AccessRole.ADMIN})
            answer = await ask(kit, LINES, b'{"a": 1}', key=other)
            assert answer.status == 404
            assert len(await kit.stored()) == len(good)

    run(main())


def test_project_and_logstore_are_named_in_several_ways(tmp_path: Path) -> None:
    async def main() -> None:
        async with ways_in_kit(tmp_path, WaysInSettings()) as kit:
            anybody = await kit.gateway.access.create({"*": AccessRole.WRITER})
            both = {"X-Raftwood-Project": PROJECT, "X-Raftwood-Logstore": LOGSTORE}
            request = b'{"streams": []}'
            path = "/loki/api/v1/push"
            json_type = {"Content-Type": "application/json"}

            async def status(key: AccessKey, path: str, **headers: str) -> tuple[int, bytes]:
                answer = await ask(kit, path, request, key=key, **headers, **json_type)
                return answer.status, answer.body

            assert (await status(anybody, path, **both))[0] == 204
            query = f"{path}?project={PROJECT}&logstore={LOGSTORE}"
            assert (await status(anybody, query))[0] == 204
            assert (await status(anybody, f"{path}?logstore=a", X_Scope_OrgID=PROJECT))[0] == 204
            assert (await status(kit.writer, f"{path}?logstore={LOGSTORE}"))[0] == 204
            code, told = await status(kit.writer, path)
            assert code == 400
            assert b"ways_in.logstore" in told
            code, told = await status(anybody, f"{path}?logstore={LOGSTORE}")
            assert code == 400
            assert b"X-Raftwood-Project" in told

    run(main())


def test_a_logstore_that_is_not_there_is_named(tmp_path: Path) -> None:
    async def main() -> None:
        async with ways_in_kit(tmp_path) as kit:
            path = LINES.replace(LOGSTORE, "other")
            answer = await ask(kit, path, b'{"a": 1}')
            assert answer.status == 404
            assert "other" in answer.json["error"]["message"]
            for method, path in (("GET", LINES), ("POST", "/api/v1/projects/x")):
                answer = await ask(kit, path, method=method)
                assert answer.status == 404
            answer = await ask(kit, "/somewhere")
            assert answer.status == 404

    run(main())


def test_bodies_are_bounded_packed_and_unpacked(tmp_path: Path) -> None:
    async def main() -> None:
        limits = GatewaySettings(body_bytes_max=10_000, raw_bytes_max=20_000)
        async with ways_in_kit(tmp_path, limits=limits) as kit:
            answer = await ask(kit, LINES, b" " * 10_001)
            assert answer.status == 413
            packed = gzip.compress(b" " * 20_001)
            answer = await ask(kit, LINES, packed, Content_Encoding="gzip")
            assert answer.status == 413
            answer = await ask(kit, LINES, packed[:-9], Content_Encoding="gzip")
            assert answer.status == 400
            answer = await ask(kit, LINES, packed, Content_Encoding="br")
            assert answer.status == 400

    run(main())


@pytest.mark.parametrize("requests", [1, 40])
def test_a_turn_decodes_a_few_slices_however_many_requests_there_are(
    tmp_path: Path, requests: int
) -> None:
    slices = 0

    def decoded() -> Iterator[RecordSection]:
        nonlocal slices
        body = b'{"a": 1}\n' * 20 * SLICE_RECORDS
        for section in json_lines.decode(body, received_ns=NOW_NS):
            slices += 1
            yield section

    async def main() -> None:
        async with ways_in_kit(tmp_path) as kit:
            turns = kit.gateway.decoding
            tasks = [asyncio.create_task(gathered(decoded(), turns)) for _ in range(requests)]
            await asyncio.sleep(0)  # each begins with a slice
            async with counting(lambda: slices) as most:
                found = await asyncio.gather(*tasks)
            records = [sum(len(each.records) for each in sections) for sections in found]
            assert records == [20 * SLICE_RECORDS] * requests
            # Two halves of four slices, with one more each.
            assert most.in_a_turn <= 10

    run(main())


def test_records_of_a_request_are_counted(tmp_path: Path) -> None:
    async def main() -> None:
        async with ways_in_kit(tmp_path) as kit:
            answer = await ask(kit, LINES, b"{}\n" * (RECORDS_MAX + 1))
            assert answer.status == 413
            assert str(RECORDS_MAX) in answer.json["error"]["message"]
            assert await kit.stored() == []

    run(main())


# Limits


def posted_at_once(kit: WaysInKit, head: bytes, body: bytes = b"") -> Answered:
    """By a client that reads its answer only once it has sent all."""
    with socket.create_connection(("127.0.0.1", kit.port), timeout=60) as client:
        client.sendall(head)
        client.sendall(body)
        answer = http.client.HTTPResponse(client)
        answer.begin()
        headers = {name.lower(): value for name, value in answer.getheaders()}
        return Answered(answer.status, headers, answer.read())


MESSAGES = {
    LINES: lambda answer: answer.json["error"]["message"],
    "/_bulk": lambda answer: answer.json["error"]["root_cause"][0]["reason"],
    "/loki/api/v1/push": lambda answer: answer.body.decode(),
    # Without its headers, of which there are none yet, a request of OTLP is one of protobuf.
    "/v1/logs": lambda answer: answer.body.decode("utf-8", "replace"),
}


@pytest.mark.parametrize("path", MESSAGES)
def test_what_is_above_a_limit_is_told_as_the_way_in_tells_errors(
    tmp_path: Path, path: str
) -> None:
    async def main() -> None:
        async with ways_in_kit(tmp_path) as kit:
            line = f"POST {path} HTTP/1.1\r\n".encode()
            long_url = f"POST {path}?x={'y' * 200_000} HTTP/1.1\r\n".encode()
            lines = {"host": "x", "content-type": "application/json", **basic(kit.writer)}
            head = "".join(f"{name}: {value}\r\n" for name, value in lines.items()).encode()
            size = 50_000_000
            length = b"content-length: %d\r\n" % size
            long_header = b"x: " + b"y" * 500_000 + b"\r\n"
            for request, body, status, named in (
                (line + head + length + b"connection: close\r\n\r\n", bytes(size), 413, "bytes"),
                (line + head + length + b"\r\n", bytes(size), 413, "bytes"),
                (line + head + long_header + b"\r\n", b"", 431, "headers"),
                (long_url + head + b"\r\n", b"", 414, "URL"),
            ):
                answer = await asyncio.to_thread(posted_at_once, kit, request, body)
                assert answer.status == status
                assert answer.headers["connection"] == "close"
                assert named in MESSAGES[path](answer)
            assert (await ask(kit, LINES, b"{}")).status == 200

    run(main())


@pytest.mark.parametrize(
    ("path", "body", "type_"),
    [
        (LINES, b'{"a": [' + b"1," * 20_000 + b"1]}", ""),
        (LINES, b"[" + b"1," * 600_000 + b"1]", ""),
        (LINES, b'{"a":' + b"[" * 100 + b"]" * 100 + b"}", ""),
        ("/_bulk", b'{"create":{"_id":' + b"[" * 100 + b"]" * 100 + b"}}\n{}", ""),
        ("/v1/logs", b'{"resourceLogs":[' + b"{}," * 600_000 + b"{}]}", "application/json"),
        ("/v1/logs", b"\x0a\x00" * 200_000, "application/x-protobuf"),
        ("/loki/api/v1/push", b'{"streams":[' + b"{}," * 600_000 + b"{}]}", "application/json"),
        ("/loki/api/v1/push", cramjam.snappy.compress_raw(b"\x0a\x04\x0a\x02{}" * 100_000), ""),
    ],
)
def test_what_has_too_many_parts_is_refused(
    tmp_path: Path, path: str, body: bytes, type_: str
) -> None:
    async def main() -> None:
        async with ways_in_kit(tmp_path) as kit:
            answer = await ask(kit, path, bytes(body), Content_Type=type_)
            assert answer.status == 413, answer.body
            assert await kit.stored() == []

    run(main())


# OTLP


def test_otlp_is_answered_in_the_encoding_of_the_request(tmp_path: Path) -> None:
    async def main() -> None:
        async with ways_in_kit(tmp_path) as kit:
            kinds = {
                "application/x-protobuf": (targets.otlp_seeds()[0], b""),
                "application/json": (targets.otlp_json_seeds()[0], b"{}"),
            }
            for kind, (body, expected) in kinds.items():
                answer = await ask(kit, "/v1/logs", body, Content_Type=kind)
                assert (answer.status, answer.body) == (200, expected)
            from google.rpc.status_pb2 import Status

            answer = await ask(kit, "/v1/logs", b"\xff", Content_Type="application/x-protobuf")
            assert answer.status == 400
            assert answer.headers["content-type"] == "application/x-protobuf"
            assert "ExportLogsServiceRequest" in Status.FromString(answer.body).message
            answer = await ask(kit, "/v1/logs", b"{", Content_Type="application/json; charset=x")
            assert answer.status == 400
            assert "export request" in answer.json["message"]
            answer = await ask(kit, "/v1/logs", b"", Content_Type="text/plain")
            assert answer.status == 400
            assert len(await kit.stored()) == 3

    run(main())


def test_otlp_records_that_are_too_large_are_refused_alone(tmp_path: Path) -> None:
    async def main() -> None:
        async with ways_in_kit(tmp_path, limits=GatewaySettings(raw_bytes_max=20_000)) as kit:
            request = ExportLogsServiceRequest()
            records = request.resource_logs.add().scope_logs.add().log_records
            records.add().body.string_value = "short"
            records.add().body.string_value = "x" * 30_000
            body = request.SerializeToString()
            answer = await ask(kit, "/v1/logs", body, Content_Type="application/x-protobuf")
            assert answer.status == 200
            told = ExportLogsServiceResponse.FromString(answer.body).partial_success
            assert told.rejected_log_records == 1
            assert "20000 bytes" in told.error_message
            assert [each.contents for each in await kit.stored()] == [{"body": "short"}]

    run(main())


# Loki


def test_loki_takes_json_and_protobuf(tmp_path: Path) -> None:
    async def main() -> None:
        async with ways_in_kit(tmp_path) as kit:
            path = "/loki/api/v1/push"
            (text,) = targets.loki_json_seeds()
            for encoding in ("", "gzip"):
                body = gzip.compress(text) if encoding else text
                answer = await ask(
                    kit, path, body, Content_Type="application/json", Content_Encoding=encoding
                )
                assert (answer.status, answer.body) == (204, b"")
            push = loki.PushRequest()
            push.streams.add(labels=b'{app="shop"}').entries.add(line=b"hello")
            body = bytes(cramjam.snappy.compress_raw(push.SerializeToString()))
            for encoding in ("", "snappy"):
                answer = await ask(
                    kit,
                    path,
                    body,
                    Content_Type="application/x-protobuf",
                    Content_Encoding=encoding,
                )
                assert answer.status == 204
            answer = await ask(kit, path, b"\xff\xff", Content_Type="application/x-protobuf")
            assert answer.status == 400
            assert b"snappy" in answer.body
            answer = await ask(kit, path, method="GET")
            assert answer.status == 404
            assert len(await kit.stored()) == 8

    run(main())


# The root


def test_a_browser_and_curl_at_the_root_learn_what_the_port_is(tmp_path: Path) -> None:
    async def main() -> None:
        async with ways_in_kit(tmp_path) as kit:
            for accept in ("text/html,application/xhtml+xml;q=0.9,*/*;q=0.8", "*/*"):
                answer = await ask(kit, "/", method="GET", Authorization="", Accept=accept)
                assert answer.status == 200
                assert answer.headers["content-type"] == "text/plain; charset=utf-8"
                assert "www-authenticate" not in answer.headers
                assert "x-elastic-product" not in answer.headers
                text = answer.body.decode()
                for there in ("/openapi.json", "/_bulk", "/v1/logs", "/loki/api/v1/push", "/lines"):
                    assert there in text
                assert "raftwood key create" in text
                assert "gateway.listen" in text
            answer = await ask(kit, "/", method="HEAD", Authorization="", Accept="*/*")
            assert (answer.status, answer.body) == (200, b"")
            # Elasticsearch's clients say what they accept, and that they have a key.
            of_elasticsearch = "application/vnd.elasticsearch+json; compatible-with=9"
            for accept in (of_elasticsearch, "application/json"):
                answer = await ask(kit, "/", method="GET", Authorization="", Accept=accept)
                assert answer.status == 401
                assert answer.json["error"]["type"] == "security_exception"
            answer = await ask(kit, "/", method="GET", Accept="*/*")
            assert answer.json["version"]["number"]

    run(main())


# Elasticsearch


def test_elasticsearch_says_who_it_is_to_who_sends_a_key(tmp_path: Path) -> None:
    async def main() -> None:
        async with ways_in_kit(tmp_path) as kit:
            for path in ("/", "/elasticsearch", "/elasticsearch/"):
                answer = await ask(kit, path, method="GET")
                assert answer.headers["x-elastic-product"] == "Elasticsearch"
                assert answer.json["version"]["number"]
                answer = await ask(kit, path, method="HEAD")
                assert (answer.status, answer.body) == (200, b"")
            for path in ("/_license", "/elasticsearch/_cluster/health"):
                assert (await ask(kit, path, method="GET")).status == 200
            answer = await ask(kit, "/", method="GET", Authorization="LOG id:signature")
            assert answer.json == "SLS"
            answer = await ask(kit, "/", method="GET", Authorization="Basic x")
            assert answer.status == 401
            assert answer.json["error"]["type"] == "security_exception"
            answer = await ask(kit, "/elasticsearch/_search")
            assert answer.status == 404

    run(main())


def test_a_bulk_is_answered_item_by_item(tmp_path: Path) -> None:
    async def main() -> None:
        async with ways_in_kit(tmp_path, limits=GatewaySettings(raw_bytes_max=20_000)) as kit:
            large = json.dumps({"message": "x" * 19_800}).encode()
            body = BULK + b'{"index": {"_index": "other"}}\n{}\n{"index": {}}\n' + large + b"\n"
            answer = await ask(kit, f"/{LOGSTORE}/_bulk", body, Accept="a;compatible-with=8")
            assert answer.status == 200
            assert answer.headers["content-type"].endswith("compatible-with=8")
            told = [next(iter(each.values())) for each in answer.json["items"]]
            assert answer.json["errors"] is True
            assert [each["status"] for each in told] == [201, 404, 413]
            assert told[0]["_id"]
            answer = await ask(kit, f"/{LOGSTORE}/_bulk", BULK)
            assert answer.json["errors"] is False
            answer = await ask(kit, "/_bulk", BULK)
            assert answer.status == 400
            assert "names no index" in answer.json["error"]["reason"]
            assert len(await kit.stored()) == 2

    run(main())


def test_a_bulk_that_cannot_be_stored_now_can_be_sent_again(tmp_path: Path) -> None:
    async def main() -> None:
        limits = GatewaySettings(write_requests_per_s_max=1)
        async with ways_in_kit(tmp_path, limits=limits) as kit:
            statuses = []
            for _ in range(4):
                answer = await ask(kit, f"/{LOGSTORE}/_bulk", BULK)
                statuses.append(answer.json["items"][0]["create"]["status"])
            assert statuses[0] == 201
            assert statuses[-1] == 429
            answer = await ask(kit, LINES, b'{"a": 1}')
            assert (answer.status, answer.headers["retry-after"]) == (429, "1")

    run(main())


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (QuotaExceeded("x"), 429),
        (Overloaded("x"), 429),
        (DiskFull("x"), 503),
        (Unavailable("x"), 503),
        (DeadlineExceeded("x"), 504),
    ],
)
def test_what_may_pass_has_a_status_that_clients_try_again_after(
    error: RaftwoodError, status: int
) -> None:
    assert status_of(error) == status


def test_a_large_push_and_large_lines_are_unpacked_beside_the_loop(tmp_path: Path) -> None:
    async def main() -> None:
        async with ways_in_kit(tmp_path) as kit:
            line = b"x" * (2 << 20)
            push = loki.PushRequest()
            push.streams.add(labels=b'{app="a"}').entries.add(line=line)
            push = cramjam.snappy.compress_raw(push.SerializeToString())
            lines = zstandard.compress(b'{"line": "%b"}' % line)
            for path, body, encoding in (
                ("/loki/api/v1/push", bytes(push), "snappy"),
                (LINES, lines, "zstd"),
            ):
                work = count_long_work(kit.gateway)
                answer = await ask(
                    kit, path, body, Content_Encoding=encoding, X_Scope_OrgID=PROJECT
                )
                assert answer.status < 300, answer.body
                assert work.count == 1

    run(main())
