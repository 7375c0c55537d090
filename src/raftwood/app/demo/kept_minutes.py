"""The minutes that the pipeline's demo keeps in Zeppelin, read by an unmodified client of Redis."""

from typing import Final

import msgspec

from raftwood.app.demo.pipeline_check import MinuteRow
from raftwood.app.parts import KvPart

_PREFIX: Final = "minute:"


class _Kept(msgspec.Struct):
    window_start: str
    requests: int
    errors: int
    bytes: int
    p95_ms: float | None = None


def read_kept_minutes(part: KvPart) -> list[MinuteRow]:
    """In order; needs the extra `redis`."""
    from redis.cluster import ClusterNode, RedisCluster  # noqa: PLC0415 (an extra)

    client = RedisCluster(
        startup_nodes=[ClusterNode(part.host, part.port)],
        username=part.user,
        password=part.password,
    )
    try:
        keys = sorted(client.scan_iter(match=f"{_PREFIX}*", count=1000))
        values = client.mget_nonatomic(keys)
    finally:
        client.close()
    rows = [msgspec.json.decode(value, type=_Kept) for value in values if value is not None]
    return [
        MinuteRow(each.window_start, each.requests, each.errors, each.bytes, each.p95_ms or 0.0)
        for each in rows
    ]
