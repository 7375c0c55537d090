"""Puts over HTTP: what is taken as it came, and what is refused with which code."""

import zlib
from pathlib import Path

import lz4.block
import pytest
import zstandard

from raftwood.base.compression import Codec
from raftwood.loghub.batches import HEAD_BYTES, decode_head
from raftwood.loghub.log_groups import LogGroup
from raftwood.loghub.model import AccessRole
from raftwood.loghub.settings import GatewaySettings
from tests.kits.loghub.gateways import HttpGateway
from tests.kits.loghub.sls import cursor, pull, put, raw_group, stream, values_of
from tests.kits.running import run

SMALL = GatewaySettings(http_listen="127.0.0.1:0", body_bytes_max=50_000, raw_bytes_max=100_000)


async def stored(served: HttpGateway) -> list[bytes]:
    pulled = await served.gateway.streams.pull("p", "s", 0, 3)
    return [bytes(batch.data) for batch in pulled.batches]


@pytest.mark.parametrize("compression", ["", "lz4", "zstd"])
def test_a_log_group_is_stored_as_it_came(tmp_path: Path, compression: str) -> None:
    async def main() -> None:
        async with stream(tmp_path) as served:
            # What newer clients may add is kept.
            raw = raw_group("a", "b") + b"\xba\x3e\x03new"
            body = {
                "": raw,
                "lz4": lz4.block.compress(raw, store_size=False),
                "zstd": zstandard.compress(raw),
            }[compression]
            answer = await put(served, body, raw_bytes=len(raw), compression=compression)
            assert (answer.status, answer.body) == (200, b"")
            assert answer.headers["x-log-requestid"]
            (batch,) = await stored(served)
            head = decode_head(batch)
            assert batch[HEAD_BYTES:] == body
            assert (head.raw_bytes, head.records) == (len(raw), 2)
            assert head.codec.name == (compression or "none").upper()

    run(main())


def test_deflate_is_taken_and_stored_in_another_way(tmp_path: Path) -> None:
    async def main() -> None:
        async with stream(tmp_path) as served:
            raw = raw_group("a", "b")
            gzip = zlib.compressobj(wbits=31)
            for name, body in (
                ("deflate", zlib.compress(raw)),
                ("gzip", gzip.compress(raw) + gzip.flush()),
            ):
                answer = await put(served, body, raw_bytes=len(raw), compression=name)
                assert answer.status == 200, answer.body
            assert {decode_head(batch).codec for batch in await stored(served)} == {Codec.LZ4}
            assert values_of(await pull(served, await cursor(served, "begin"))) == ["a", "b"] * 2

    run(main())


def test_a_put_has_two_paths_and_one_by_key(tmp_path: Path) -> None:
    async def main() -> None:
        async with stream(tmp_path, shards=2) as served:
            raw = raw_group("x")
            assert (await put(served, raw, path="/logstores/s")).status == 200
            route = "/logstores/s/shards/route"
            for key in ("0" * 32, "F" * 32):
                answer = await put(served, raw, path=route, parameters={"key": key})
                assert answer.status == 200
            for wrong in ("", "x", "0" * 31, "g" * 32):
                answer = await put(served, raw, path=route, parameters={"key": wrong})
                assert (answer.status, answer.code) == (400, "ParameterInvalid")
            counts = [len(values_of(await pull(served, await cursor(served, "begin", shard=shard),
                                               shard=shard))) for shard in (0, 1)]  # fmt: skip
            assert sorted(counts) == [1, 2]

    run(main())


def test_a_log_group_without_logs_stores_nothing(tmp_path: Path) -> None:
    async def main() -> None:
        async with stream(tmp_path) as served:
            assert (await put(served, LogGroup(Topic=b"t").SerializeToString())).status == 200
            assert (await put(served, b"")).status == 200
            assert await stored(served) == []

    run(main())


@pytest.mark.parametrize(
    ("raw_bytes", "compression", "status", "code"),
    [
        ("", "", 400, "ParameterInvalid"),
        ("-1", "", 400, "ParameterInvalid"),
        ("٣", "", 400, "ParameterInvalid"),
        ("1e3", "lz4", 400, "ParameterInvalid"),
        ("1", "", 400, "ParameterInvalid"),
        ("1", "lz4", 400, "ParameterInvalid"),
        ("99999", "lz4", 400, "ParameterInvalid"),
        ("1", "zstd", 400, "ParameterInvalid"),
        ("20", "brotli", 400, "ParameterInvalid"),
        ("100001", "lz4", 413, "PostBodyTooLarge"),
        ("99999999999999999999", "lz4", 400, "ParameterInvalid"),
        ("9999999999999999999", "zstd", 413, "PostBodyTooLarge"),
    ],
)
def test_a_wrong_raw_size_is_refused(
    tmp_path: Path, raw_bytes: str, compression: str, status: int, code: str
) -> None:
    async def main() -> None:
        async with stream(tmp_path, settings=SMALL) as served:
            body = {"lz4": lz4.block.compress(raw_group("a"), store_size=False)}.get(
                compression, zstandard.compress(raw_group("a"))
            )
            answer = await put(served, body, raw_bytes=raw_bytes, compression=compression)
            assert (answer.status, answer.code) == (status, code), answer.body
            assert await stored(served) == []

    run(main())


def test_a_body_above_the_limit_is_refused_and_the_client_reads_why(tmp_path: Path) -> None:
    async def main() -> None:
        async with stream(tmp_path, settings=SMALL) as served:
            for size in (50_001, 1_000_000):
                answer = await put(served, b"x" * size, raw_bytes=10, compression="lz4")
                assert (answer.status, answer.code) == (413, "PostBodyTooLarge")
            answer = await served.ask("POST", "/", body=b'"' + b"x" * (1 << 20) + b'"')
            assert (answer.status, answer.code) == (413, "PostBodyTooLarge")

    run(main())


@pytest.mark.parametrize(
    "body",
    [
        b"\x0a",
        b"\x0a\x02\x08",
        b"\x0a\x00",
        b"\xff" * 20,
        b"\x0a\x06\x08\x01\x12\x02\x0a\x00",
        b"not a LogGroup at all",
    ],
)
def test_what_is_no_log_group_is_refused(tmp_path: Path, body: bytes) -> None:
    async def main() -> None:
        async with stream(tmp_path) as served:
            answer = await put(served, body)
            assert (answer.status, answer.code) == (400, "ParameterInvalid")
            assert await stored(served) == []

    run(main())


def test_a_body_other_than_the_signed_one_is_refused(tmp_path: Path) -> None:
    async def main() -> None:
        async with stream(tmp_path) as served:
            raw = raw_group("x")
            for digest in ("0" * 32, "", "\xff"):
                answer = await served.ask(
                    "POST",
                    "/logstores/s",
                    project="p",
                    headers={"x-log-bodyrawsize": str(len(raw)), "content-md5": digest},
                    body=raw,
                )
                assert answer.status == 401
                assert answer.code == "SignatureNotMatch"
            assert await stored(served) == []

    run(main())


def test_who_may_not_write_is_refused_before_the_body_is_read(tmp_path: Path) -> None:
    async def main() -> None:
        async with stream(tmp_path) as served:
            reader = await served.gateway.access.create({"p": AccessRole.READER})
            stranger = await served.gateway.access.create({"q": AccessRole.ADMIN})
            answer = await put(served, raw_group("x"), key=reader)
            assert (answer.status, answer.code) == (403, "Unauthorized")
            answer = await put(served, raw_group("x"), key=stranger)
            assert (answer.status, answer.code) == (404, "ProjectNotExist")
            writer = await served.gateway.access.create({"p": AccessRole.WRITER})
            assert (await put(served, raw_group("x"), key=writer)).status == 200
            answer = await served.ask("DELETE", "/logstores/s", project="p", key=writer)
            assert (answer.status, answer.code) == (403, "Unauthorized")
            answer = await put(served, raw_group("x"), path="/logstores/nowhere")
            assert (answer.status, answer.code) == (404, "LogStoreNotExist")

    run(main())


def test_too_much_in_a_second_is_refused(tmp_path: Path) -> None:
    async def main() -> None:
        settings = GatewaySettings(http_listen="127.0.0.1:0", write_requests_per_s_max=1)
        async with stream(tmp_path, settings=settings) as served:
            answers = [await put(served, raw_group("x")) for _ in range(8)]
            refused = [answer for answer in answers if answer.status != 200]
            assert refused
            assert {(answer.status, answer.code) for answer in refused} == {
                (403, "WriteQuotaExceed")
            }

    run(main())
