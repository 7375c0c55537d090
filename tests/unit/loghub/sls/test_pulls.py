"""Pulls over HTTP: in every encoding, to an end, while waiting, and of batches of all kinds."""

import asyncio
import io
from contextlib import suppress
from pathlib import Path

import pyarrow
import pytest

from raftwood.base.compression import Codec, compress
from raftwood.base.errors import InvalidConfiguration
from raftwood.loghub.arrow_batches import write_arrow_stream
from raftwood.loghub.batches import Batch, Format
from raftwood.loghub.server.sls import bodies
from raftwood.loghub.wire import encode_cursor
from tests.kits.loghub.sls import (
    cursor,
    groups_of,
    pull,
    put,
    raw_group,
    raw_of,
    stream,
    values_of,
)
from tests.kits.loghub.streams import log_group
from tests.kits.running import run, until

ARROW = "application/vnd.apache.arrow.stream"


def packed(codec: Codec, *values: str) -> Batch:
    raw = raw_group(*values)
    return Batch(body=compress(raw, codec), codec=codec, raw_bytes=len(raw))


@pytest.mark.parametrize("encoding", ["", "lz4", "zstd", "gzip, lz4;q=1", "identity"])
def test_batches_of_all_codecs_are_pulled_in_each(tmp_path: Path, encoding: str) -> None:
    async def main() -> None:
        async with stream(tmp_path) as served:
            for codec in Codec:
                await served.gateway.streams.put("p", "s", packed(codec, codec.name, "x" * 300))
            answer = await pull(served, await cursor(served, "begin"), accept_encoding=encoding)
            assert answer.status == 200
            assert values_of(answer)[::2] == [codec.name for codec in Codec]
            assert answer.headers["content-type"] == "application/x-protobuf"
            named = answer.headers["x-log-compresstype"]
            assert named == ("zstd" if encoding == "zstd" else "lz4" if "lz4" in encoding else "")
            rest = await pull(served, answer.headers["x-log-cursor"], accept_encoding=encoding)
            assert (rest.status, rest.body) == (200, b"")
            assert rest.headers["x-log-cursor"] == answer.headers["x-log-cursor"]
            assert (rest.headers["x-log-count"], rest.headers["x-log-bodyrawsize"]) == ("0", "0")
            assert rest.headers["x-log-compresstype"] == named

    run(main())


def test_a_pull_ends_at_its_count_and_never_passes_its_end(tmp_path: Path) -> None:
    async def main() -> None:
        async with stream(tmp_path) as served:
            for number in range(5):
                assert (await put(served, raw_group(str(number)))).status == 200
            begin = await cursor(served, "begin")
            two = await pull(served, begin, count="2")
            assert values_of(two) == ["0", "1"]
            end = two.headers["x-log-cursor"]
            for count in ("1", "2", "100"):
                found, at = [], begin
                while at != end:
                    answer = await pull(served, at, count=count, end_cursor=end)
                    found += values_of(answer)
                    assert at != answer.headers["x-log-cursor"]
                    at = answer.headers["x-log-cursor"]
                assert found == ["0", "1"]
            assert values_of(await pull(served, end, type="logs", count="0")) == ["2"]

    run(main())


def test_a_pull_takes_no_more_than_fits_and_one_batch_at_least(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(bodies, "RAW_BYTES_MAX", 1000)

    async def main() -> None:
        async with stream(tmp_path) as served:
            sent = ["a" * 400, "b" * 400, "c" * 3000, "d"]
            for value in sent:
                await put(served, raw_group(value))
            found, at = [], await cursor(served, "begin")
            sizes = []
            while at != await cursor(served, "end"):
                answer = await pull(served, at)
                sizes.append(len(groups_of(answer)))
                found += values_of(answer)
                at = answer.headers["x-log-cursor"]
            assert found == sent
            assert sizes == [2, 1, 1]

    run(main())


def test_a_long_poll_waits_for_the_next_batch_and_not_for_ever(tmp_path: Path) -> None:
    async def main() -> None:
        async with stream(tmp_path) as served:
            loop = asyncio.get_running_loop()
            began = loop.time()
            start = await cursor(served, "end")
            answer = await pull(served, start, wait_ms="300")
            assert values_of(answer) == []
            assert loop.time() - began >= 0.29
            async with asyncio.TaskGroup() as group:
                waiting = group.create_task(pull(served, start, wait_ms="20000"))
                await asyncio.sleep(0.1)
                assert not waiting.done()
                await put(served, raw_group("x"))
                async with asyncio.timeout(60):
                    assert values_of(await waiting) == ["x"]

    run(main())


def test_a_long_poll_ends_when_its_client_goes_away(tmp_path: Path) -> None:
    async def main() -> None:
        async with stream(tmp_path) as served:
            start = await cursor(served, "end")
            with suppress(TimeoutError):
                async with asyncio.timeout(0.2):
                    await pull(served, start, wait_ms="20000")
            await until(lambda: b"gateway_requests 0.0" in served.metrics.render())

    run(main())


@pytest.mark.parametrize(
    "text",
    [
        "x",
        "MQ=",
        "====",
        encode_cursor(0)[:-1],
        encode_cursor(10**30),
        encode_cursor((1 << 128) - 1),
        "LTE=",
        "MWUz",
        "../../etc/passwd",
        "٣",
        "A" * 5000,
    ],
)
def test_an_absurd_cursor_is_refused(tmp_path: Path, text: str) -> None:
    async def main() -> None:
        async with stream(tmp_path) as served:
            await put(served, raw_group("x"))
            answer = await pull(served, text)
            assert (answer.status, answer.code) == (400, "InvalidCursor")
            begin = await cursor(served, "begin")
            answer = await pull(served, begin, end_cursor=text)
            assert answer.status == 200 or answer.code == "InvalidCursor"
            answer = await served.ask(
                "GET",
                "/logstores/s/shards/0",
                project="p",
                parameters={"type": "cursor_time", "cursor": text},
            )
            assert (answer.status, answer.code) == (400, "InvalidCursor")

    run(main())


def test_white_space_in_a_cursor_is_no_error(tmp_path: Path) -> None:
    async def main() -> None:
        async with stream(tmp_path) as served:
            await put(served, raw_group("x"))
            begin = await cursor(served, "begin")
            assert values_of(await pull(served, f" {begin}\n")) == ["x"]

    run(main())


@pytest.mark.parametrize(
    "parameters",
    [
        {},
        {"type": "nothing"},
        {"type": "cursor"},
        {"type": "cursor", "from": "-1"},
        {"type": "cursor", "from": "yesterday"},
        {"type": "log"},
        {"type": "log", "cursor": "Mw==", "count": "many"},
        {"type": "log", "cursor": "Mw==", "count": "9" * 30},
        {"type": "log", "cursor": "Mw==", "wait_ms": "-1"},
        {"type": "log", "cursor": "Mw==", "query": "* | where a = 'b'"},
        {"type": "log", "cursor": "Mw==", "processor": "one"},
    ],
)
def test_wrong_parameters_are_refused(tmp_path: Path, parameters: dict[str, str]) -> None:
    async def main() -> None:
        async with stream(tmp_path) as served:
            answer = await served.ask(
                "GET", "/logstores/s/shards/0", project="p", parameters=parameters
            )
            assert (answer.status, answer.code) == (400, "ParameterInvalid")
            for shard in ("1", "-1", "x", "9" * 30, "0/1", ""):
                answer = await served.ask(
                    "GET", f"/logstores/s/shards/{shard}", project="p", parameters=parameters
                )
                assert 400 <= answer.status < 500

    run(main())


def test_arrow_comes_in_and_goes_out_and_is_read_by_everybody(tmp_path: Path) -> None:
    async def main() -> None:
        async with stream(tmp_path) as served:
            table = pyarrow.table({"message": ["a", None, "c"], "number": [1, 2, 3]})
            sent = write_arrow_stream(table)
            assert (await put(served, sent, content_type=ARROW)).status == 200
            packed_body = bytes(compress(sent, Codec.LZ4))
            answer = await put(
                served, packed_body, raw_bytes=len(sent), compression="lz4", content_type=ARROW
            )
            assert answer.status == 200
            assert (await put(served, raw_group("d", "e"))).status == 200
            begin = await cursor(served, "begin")
            logs = [log for group in groups_of(await pull(served, begin)) for log in group.Logs]
            assert len(logs) == 8
            assert {each.Key: each.Value for each in logs[0].Contents}[b"number"] == b"1"
            answer = await pull(served, begin, accept=ARROW, accept_encoding="lz4")
            assert answer.headers["content-type"] == ARROW
            data, found = io.BytesIO(raw_of(answer)), []
            while size := int.from_bytes(data.read(4), "little"):
                found.append(pyarrow.ipc.open_stream(data.read(size)).read_all())
            assert found[0].equals(table)
            assert found[1].equals(table)
            assert found[2].column("message").to_pylist() == ["d", "e"]
            for broken in (b"", b"x" * 100, sent[:-100], sent[:8]):
                answer = await put(served, broken, content_type=ARROW)
                assert (answer.status, answer.code) == (400, "ParameterInvalid")

    run(main())


@pytest.mark.parametrize(
    "batch",
    [
        Batch(body=b"not lz4 at all", codec=Codec.LZ4, raw_bytes=100),
        Batch(body=b"not zstd at all", codec=Codec.ZSTD, raw_bytes=100),
        Batch(body=b"short", raw_bytes=100),
        Batch(body=b"no Arrow", format=Format.ARROW, raw_bytes=8),
    ],
)
def test_a_batch_that_cannot_be_read_is_told_in_the_stream(tmp_path: Path, batch: Batch) -> None:
    async def main() -> None:
        async with stream(tmp_path) as served:
            await served.gateway.streams.put("p", "s", log_group("before"))
            await served.gateway.streams.put("p", "s", batch)
            await served.gateway.streams.put("p", "s", log_group("after"))
            begin = await cursor(served, "begin")
            before, told, after = values_of(await pull(served, begin))
            assert (before, after) == ("before", "after")
            assert "position 5 cannot be read" in told
            answer = await pull(served, begin, accept=ARROW)
            assert (answer.status, answer.headers["x-log-count"]) == (200, "3")

    run(main())


def test_a_gateway_without_arrow_skips_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def main() -> None:
        async with stream(tmp_path) as served:
            sent = write_arrow_stream(pyarrow.table({"message": ["a"]}))
            assert (await put(served, sent, content_type=ARROW)).status == 200
            begin = await cursor(served, "begin")

            def missing() -> None:
                raise InvalidConfiguration("Arrow needs pyarrow")

            with monkeypatch.context() as patched:
                patched.setattr("raftwood.loghub.arrow_batches.import_arrow", missing)
                answer = await pull(served, begin)
                assert answer.status == 400
                assert "needs pyarrow" in answer.json()["errorMessage"]
            assert len(groups_of(await pull(served, begin))) == 1

    run(main())


def test_what_batches_are_converted_to_counts_in_a_pull(tmp_path: Path) -> None:
    """A few bytes of Arrow may stand for very many of text."""

    async def main() -> None:
        async with stream(tmp_path) as served:
            rows = 30_000
            table = pyarrow.table(
                {"value": pyarrow.DictionaryArray.from_arrays([0] * rows, ["x" * 100])}
            )
            body = write_arrow_stream(table)
            packed = compress(body, Codec.ZSTD)
            batch = Batch(
                body=packed,
                format=Format.ARROW,
                codec=Codec.ZSTD,
                raw_bytes=len(body),
                records=rows,
            )
            assert len(packed) < 10_000
            for _ in range(8):
                await served.gateway.streams.put("p", "s", batch, shard=0)
            found, at = 0, await cursor(served, "begin")
            while found < 8:
                answer = await pull(served, at)
                assert int(answer.headers["x-log-bodyrawsize"]) < 20 << 20
                count = int(answer.headers["x-log-count"])
                assert count > 0
                found, at = found + count, answer.headers["x-log-cursor"]
            assert found == 8

    run(main())
