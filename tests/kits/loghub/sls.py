"""A stream over HTTP for tests: LogGroups, and how they are put and pulled."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import lz4.block
import zstandard

from raftwood.loghub.log_groups import LogGroupList
from raftwood.loghub.model import AccessKey
from raftwood.loghub.settings import GatewaySettings
from tests.kits.loghub.gateways import SETTINGS, HttpAnswer, HttpGateway, http_gateway
from tests.kits.loghub.streams import log_group

PROTOBUF = "application/x-protobuf"


@asynccontextmanager
async def stream(
    folder: Path, *, shards: int = 1, settings: GatewaySettings = SETTINGS
) -> AsyncIterator[HttpGateway]:
    """With project p and logstore s."""
    async with http_gateway(folder, settings=settings) as served:
        await served.gateway.catalog.create_project("p")
        await served.gateway.catalog.create_logstore("p", "s", shard_count=shards)
        yield served


def raw_group(*values: str) -> bytes:
    return bytes(log_group(*values).body)


async def put(
    served: HttpGateway,
    body: bytes,
    *,
    raw_bytes: int | str | None = None,
    compression: str = "",
    content_type: str = PROTOBUF,
    path: str = "/logstores/s/shards/lb",
    parameters: Mapping[str, str] | None = None,
    key: AccessKey | None = None,
) -> HttpAnswer:
    size = len(body) if raw_bytes is None else raw_bytes
    headers = {"x-log-bodyrawsize": str(size), "content-type": content_type}
    if compression:
        headers["x-log-compresstype"] = compression
    return await served.ask(
        "POST", path, project="p", headers=headers, body=body, parameters=parameters, key=key
    )


async def cursor(served: HttpGateway, at: str, *, shard: int = 0) -> str:
    answer = await served.ask(
        "GET",
        f"/logstores/s/shards/{shard}",
        project="p",
        parameters={"type": "cursor", "from": at},
    )
    assert answer.status == 200, answer.body
    return str(answer.json()["cursor"])


async def pull(
    served: HttpGateway,
    start: str,
    *,
    accept_encoding: str = "",
    accept: str = PROTOBUF,
    shard: int = 0,
    **parameters: str,
) -> HttpAnswer:
    headers = {"accept-encoding": accept_encoding, "accept": accept}
    return await served.ask(
        "GET",
        f"/logstores/s/shards/{shard}",
        project="p",
        parameters={"type": "log", "cursor": start, **parameters},
        headers=headers,
    )


def raw_of(answer: HttpAnswer) -> bytes:
    """A pull's body, decompressed as SLS clients do."""
    size = int(answer.headers["x-log-bodyrawsize"])
    match answer.headers["x-log-compresstype"]:
        case "lz4":
            raw: bytes = lz4.block.decompress(answer.body, uncompressed_size=size) if size else b""
        case "zstd":
            raw = zstandard.decompress(answer.body) if size else b""
        case _:
            raw = answer.body
    assert len(raw) == size
    return raw


def groups_of(answer: HttpAnswer) -> list[Any]:
    groups = list(LogGroupList.FromString(raw_of(answer)).LogGroups)
    assert len(groups) == int(answer.headers["x-log-count"])
    return groups


def values_of(answer: HttpAnswer) -> list[str]:
    """The first content of each record."""
    return [log.Contents[0].Value.decode() for group in groups_of(answer) for log in group.Logs]
