"""What LogHub's ways in cost a gateway: `python -m benchmarks.ways_in`.

Requests of 1000 records with six fields each, from the bytes of the wire to the compressed batch
that is put; CPU time alone counts. `--holds` shows how long the loop is held at most in between, by
requests of 8 MB, by those whose records are few and large, and by bombs; then by bodies of 64 MB,
which is the largest limit, if they were unpacked on the loop, and as they are beside it.
"""

import argparse
import asyncio
import gzip
import json
import os
import time
from collections.abc import Callable, Iterable
from functools import partial
from typing import Any

import cramjam
import msgpack
import zstandard
from msgspec.structs import replace
from opentelemetry.proto.collector.logs.v1.logs_service_pb2 import ExportLogsServiceRequest

from raftwood.base.compression import Codec, compress
from raftwood.base.environment import at_once
from raftwood.base.errors import RaftwoodError
from raftwood.disk.real_environment import real_environment
from raftwood.loghub.batches import decompress
from raftwood.loghub.server.content_encoding import unpack_zstd
from raftwood.loghub.server.gateway import DECODING
from raftwood.loghub.server.long_work import LongWork
from raftwood.loghub.server.ways_in import (
    elasticsearch,
    fluent_forward,
    json_lines,
    loki,
    otlp,
    syslog,
)
from raftwood.loghub.server.ways_in.records import PAUSE, RecordSection, gathered, pack
from raftwood.net.listeners import FairScheduler

RECORDS = 1_000
ROUNDS = 15
NOW_NS = 1_800_000_000_000_000_000
BYTES_MAX = 16 << 20
LARGEST_BYTES = 64 << 20

DOCUMENTS = [
    {
        "@timestamp": "2026-11-16T08:00:00.123Z",
        "level": "info",
        "message": f"order {number} was bought by customer {number * 7} in 12 ms",
        "host": "web-1",
        "user": {"id": number},
        "status": 200,
    }
    for number in range(RECORDS)
]
MESSAGES = [str(document["message"]) for document in DOCUMENTS]


def lines() -> Callable[[], Iterable[RecordSection]]:
    body = "\n".join(map(json.dumps, DOCUMENTS)).encode()
    return lambda: json_lines.decode(body, received_ns=NOW_NS)


def bulk() -> Callable[[], Iterable[RecordSection]]:
    body = "".join(f'{{"create":{{}}}}\n{json.dumps(each)}\n' for each in DOCUMENTS).encode()

    def decode() -> Iterable[RecordSection]:
        found = elasticsearch.decode(body, index="app", received_ns=NOW_NS)
        items = [each for each in found if isinstance(each, elasticsearch.BulkItem)]
        list(elasticsearch.encode_answer(items, made_ids=[""] * RECORDS, took_ms=1))
        return [RecordSection({}, [item.record for item in items if item.record is not None])]

    return decode


def otlp_protobuf() -> Callable[[], Iterable[RecordSection]]:
    request = ExportLogsServiceRequest()
    of_resource = request.resource_logs.add()
    of_resource.resource.attributes.add(key="service.name").value.string_value = "shop"
    records = of_resource.scope_logs.add().log_records
    for message in MESSAGES:
        record = records.add(time_unix_nano=NOW_NS, severity_number=9, severity_text="INFO")
        record.body.string_value = message
        record.trace_id = bytes(16)
        record.attributes.add(key="host").value.string_value = "web-1"
        record.attributes.add(key="status").value.int_value = 200
    body = request.SerializeToString()
    return lambda: otlp.decode(body, is_json=False, received_ns=NOW_NS)


def otlp_as_json() -> Callable[[], Iterable[RecordSection]]:
    records = [
        {
            "timeUnixNano": str(NOW_NS),
            "severityNumber": 9,
            "severityText": "INFO",
            "traceId": "0" * 32,
            "body": {"stringValue": message},
            "attributes": [
                {"key": "host", "value": {"stringValue": "web-1"}},
                {"key": "status", "value": {"intValue": "200"}},
            ],
        }
        for message in MESSAGES
    ]
    body = json.dumps({"resourceLogs": [{"scopeLogs": [{"logRecords": records}]}]}).encode()
    return lambda: otlp.decode(body, is_json=True, received_ns=NOW_NS)


def loki_as_json() -> Callable[[], Iterable[RecordSection]]:
    values = [[str(NOW_NS), message] for message in MESSAGES]
    body = json.dumps({"streams": [{"stream": {"app": "shop"}, "values": values}]}).encode()
    return lambda: loki.decode_json(body, received_ns=NOW_NS)


def loki_protobuf() -> Callable[[], Iterable[RecordSection]]:
    push = loki.PushRequest()
    stream = push.streams.add(labels=b'{app="shop"}')
    for message in MESSAGES:
        stream.entries.add(line=message.encode()).timestamp.seconds = NOW_NS // 1_000_000_000
    body = bytes(cramjam.snappy.compress_raw(push.SerializeToString()))
    return lambda: loki.decode_protobuf(body, received_ns=NOW_NS, bytes_max=BYTES_MAX)


def syslog_lines() -> Callable[[], Iterable[RecordSection]]:
    head = "<165>1 2026-11-16T08:00:00.003Z web-1 shop 42 -"
    body = "".join(
        f'{head} [order@1 id="{number}"] {message}\n' for number, message in enumerate(MESSAGES)
    ).encode()

    def decode() -> Iterable[RecordSection]:
        frames = syslog.FrameReader(bytes_max=BYTES_MAX).feed(body)
        return [
            RecordSection({}, [syslog.decode_message(each, received_ns=NOW_NS) for each in frames])
        ]

    return decode


def fluent(*, is_compressed: bool) -> Callable[[], Iterable[RecordSection]]:
    when = msgpack.ExtType(0, (NOW_NS // 1_000_000_000).to_bytes(4, "big") + bytes(4))
    packed = b"".join(msgpack.packb([when, document]) for document in DOCUMENTS)
    options = {"chunk": "c"}
    if is_compressed:
        packed = gzip.compress(packed)
        options["compressed"] = "gzip"
    body = bytes(msgpack.packb(["shop", packed, options]))

    def decode() -> Iterable[RecordSection]:
        (message,) = fluent_forward.MessageReader(bytes_max=BYTES_MAX).feed(body)
        found = fluent_forward.decode_message(message, received_ns=NOW_NS, bytes_max=BYTES_MAX)
        return found.sections

    return decode


def records_per_second(decode: Callable[[], Iterable[RecordSection]]) -> float:
    """Of CPU; the best of some rounds, for others use the machine too."""
    best = float("inf")
    for _ in range(ROUNDS):
        began = time.process_time()
        for packed in pack(list(decode()), bytes_max=BYTES_MAX):
            if packed is not None:
                packed.batch()
        best = min(best, time.process_time() - began)
    return RECORDS / best


def large_requests() -> dict[str, Callable[[], Iterable[Any]]]:
    """Each of about 8 MB."""
    copies = 45
    documents = [json.dumps(each) for each in DOCUMENTS] * copies
    as_lines = "\n".join(documents).encode()
    as_array = ("[" + ",".join(documents) + "]").encode()
    as_bulk = "".join(f'{{"create":{{}}}}\n{each}\n' for each in documents).encode()
    large = b"\n".join([b'{"message":"%s"}' % (b"x" * 1_000_000)] * 8)
    many_keys = b"{" + b",".join(b'"k%07d":1' % number for number in range(700_000)) + b"}"
    many_items = b"[" + b"1," * 4_000_000 + b"1]"
    values = [[str(NOW_NS), message] for message in MESSAGES] * 90
    push = {"streams": [{"stream": {"app": "shop"}, "values": values}]}
    as_push = json.dumps(push).encode()
    request = ExportLogsServiceRequest()
    scope = request.resource_logs.add().scope_logs.add()
    for message in MESSAGES * 90:
        record = scope.log_records.add(time_unix_nano=NOW_NS, severity_text="INFO")
        record.body.string_value = message
        record.attributes.add(key="host").value.string_value = "web-1"
    as_export = request.SerializeToString()
    values_only = b"\x01" * (256 << 10)

    def in_lines(body: bytes) -> Callable[[], Iterable[RecordSection]]:
        return lambda: json_lines.decode(body, received_ns=NOW_NS)

    def scanned(data: bytes) -> Callable[[], Iterable[RecordSection]]:
        """As much as is read from a connection at a time."""
        reader = fluent_forward.MessageReader(bytes_max=BYTES_MAX)
        return lambda: (PAUSE for _ in reader.feed_in_slices(data))

    return {
        "lines": in_lines(as_lines),
        "lines of 1 MB": in_lines(large),
        "array": in_lines(as_array),
        "bulk": lambda: elasticsearch.decode(as_bulk, index="app", received_ns=NOW_NS),
        "Loki JSON": lambda: loki.decode_json(as_push, received_ns=NOW_NS),
        "OTLP protobuf": lambda: otlp.decode(as_export, is_json=False, received_ns=NOW_NS),
        "700,000 keys": in_lines(many_keys),
        "4,000,000 items": in_lines(many_items),
        "blank lines": in_lines(b"\n" * (8 << 20)),
        "Fluent, of values": scanned(b"\xdd" + len(values_only).to_bytes(4, "big") + values_only),
        "Fluent, small ones": scanned(values_only),
    }


def large_bodies() -> dict[str, Callable[[], object]]:
    """What is done with each in one go."""
    raw = os.urandom(LARGEST_BYTES // 2) + bytes(LARGEST_BYTES // 2)
    size = len(raw)
    as_lz4, as_zstd = compress(raw, Codec.LZ4), compress(raw, Codec.ZSTD)
    as_stream = zstandard.ZstdCompressor(level=1, write_content_size=False).compress(raw)
    as_snappy = bytes(cramjam.snappy.compress_raw(raw))
    sized = partial(decompress, raw_bytes=size, raw_bytes_max=size)
    return {
        "lz4": partial(sized, as_lz4, Codec.LZ4),
        "zstd": partial(sized, as_zstd, Codec.ZSTD),
        "zstd, of no size": partial(unpack_zstd, as_stream, bytes_max=size),
        "snappy": partial(loki.unpack, as_snappy),
        "packing by lz4": partial(compress, raw, Codec.LZ4),
    }


async def body_hold_ms(work: Callable[[], object], long_work: LongWork) -> float:
    """Between two turns of the loop by the clock, for threads share the interpreter's lock; the
    least of some rounds, for others use the machine too.
    """
    found = []
    for _ in range(5):
        longest_s = 0.0

        async def watch() -> None:
            nonlocal longest_s
            while True:
                began = time.perf_counter()
                await asyncio.sleep(0.0005)
                longest_s = max(longest_s, time.perf_counter() - began)

        watching = asyncio.create_task(watch())
        await asyncio.sleep(0.005)
        await long_work.do(work, size=LARGEST_BYTES)
        await asyncio.sleep(0.005)
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        found.append(longest_s * 1_000)
    return min(found)


def print_holds() -> None:
    for name, request in large_requests().items():
        held_ms, outcome = asyncio.run(longest_hold_ms(request))
        print(f"{name:18} holds the loop for {held_ms:7.1f} ms at most, {outcome}")
    with real_environment() as environment:
        on_loop = LongWork(replace(environment, compute=at_once))
        beside = LongWork(environment)
        for name, work in large_bodies().items():
            held_ms = asyncio.run(body_hold_ms(work, on_loop))
            held_beside_ms = asyncio.run(body_hold_ms(work, beside))
            print(
                f"{name:18} of 64 MB: {held_ms:.1f} ms on the loop, {held_beside_ms:.1f} beside it"
            )


async def longest_hold_ms(decode: Callable[[], Iterable[Any]]) -> tuple[float, str]:
    """CPU between two turns of the loop, while a request is decoded and packed."""
    longest_s = 0.0

    async def watch() -> None:
        nonlocal longest_s
        while True:
            began = time.process_time()
            await asyncio.sleep(0)
            longest_s = max(longest_s, time.process_time() - began)

    watching = asyncio.create_task(watch())
    await asyncio.sleep(0)
    outcome = "taken"
    try:
        found = await gathered(decode(), FairScheduler(DECODING))
        sections = [each for each in found if isinstance(each, RecordSection)]
        items = [each for each in found if isinstance(each, elasticsearch.BulkItem)]
        if items:
            sections = [
                RecordSection({}, [each.record for each in items if each.record is not None])
            ]
        for packed in pack(sections, bytes_max=4 << 20):
            if packed is None:
                await asyncio.sleep(0)
            else:
                packed.batch()
                await asyncio.sleep(0)
    except RaftwoodError as error:
        outcome = error.code
    await asyncio.sleep(0)
    watching.cancel()
    await asyncio.gather(watching, return_exceptions=True)
    return longest_s * 1_000, outcome


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--holds", action="store_true", help="how long the loop is held at most")
    if parser.parse_args().holds:
        print_holds()
        return
    ways = {
        "JSON lines": lines(),
        "OTLP protobuf": otlp_protobuf(),
        "OTLP JSON": otlp_as_json(),
        "Loki protobuf": loki_protobuf(),
        "Loki JSON": loki_as_json(),
        "Elasticsearch bulk": bulk(),
        "syslog": syslog_lines(),
        "Fluent packed": fluent(is_compressed=False),
        "Fluent compressed": fluent(is_compressed=True),
    }
    for name, decode in ways.items():
        print(f"{name:18} {records_per_second(decode):9,.0f} records per CPU second")


if __name__ == "__main__":
    main()
