"""`Gateway`: all that a gateway is made of, over the metastore and the logs handed in.

No gateway is special: what they agree on is in the metastore, what they serve is in the logs.
"""

from collections.abc import Collection
from functools import cached_property
from typing import Any, Final

from raftwood.base.environment import Environment
from raftwood.base.metrics import Metrics
from raftwood.base.seams import Compare, Logs, MetaStore
from raftwood.loghub.controls import AnyControl
from raftwood.loghub.model import AccessKey, LogKind
from raftwood.loghub.server.access import Access
from raftwood.loghub.server.catalog import Catalog
from raftwood.loghub.server.consumer_groups import ConsumerGroups
from raftwood.loghub.server.control import Controls
from raftwood.loghub.server.long_work import LongWork
from raftwood.loghub.server.metadata import Metadata
from raftwood.loghub.server.placed_puts import PlacedPuts
from raftwood.loghub.server.quotas import Quotas
from raftwood.loghub.server.retention import Retention
from raftwood.loghub.server.settling import Settling
from raftwood.loghub.server.stream_metrics import StreamMetrics
from raftwood.loghub.server.streams import StreamLimits, Streams
from raftwood.loghub.settings import GatewaySettings, LogHubSettings
from raftwood.loghub.wire import ShardDetail
from raftwood.net.turns import TurnLimits, Turns

RECORD_BYTES_MAX: Final = 4 << 20
"""What a log takes at once."""
DECODING: Final = TurnLimits(pieces_max=8, slice_pieces_max=1)
"""A piece is a slice of a request, which takes a millisecond or two."""


class Gateway:
    """Use `start`, and `close` when done; metastore and logs stay their owner's."""

    def __init__(
        self,
        environment: Environment,
        store: MetaStore,
        logs: Logs,
        *,
        settings: GatewaySettings,
        loghub: LogHubSettings,
        metrics: Metrics,
        record_bytes_max: int = RECORD_BYTES_MAX,
        log_kinds: Collection[LogKind] = (LogKind.LOGSERVICE,),
    ) -> None:
        self.long_work = LongWork(environment)
        self.metadata = Metadata(store)
        settling = Settling(environment, self.metadata, logs, self._forget)
        self.access = Access(environment, self.metadata)
        self.catalog = Catalog(environment, self.metadata, settling, log_kinds)
        self.metrics = StreamMetrics(metrics)
        self.streams = Streams(
            environment,
            self.metadata,
            self.catalog,
            settling,
            logs,
            StreamLimits(record_bytes_max, settings.raw_bytes_max),
            self.metrics,
        )
        self.placed_puts = PlacedPuts(self.streams, self.catalog, settling, logs)
        self.quotas = Quotas(
            environment,
            self.metadata,
            bytes_per_s_max=settings.write_bytes_per_s_max,
            requests_per_s_max=settings.write_requests_per_s_max,
        )
        metrics.pull_counter(
            "loghub_quota_refusals_total",
            "Puts that were refused for a project's quota.",
            lambda: self.quotas.refused,
        )
        metrics.pull_gauge(
            "loghub_metadata_fresh",
            "1 while changes of projects, logstores, shards and keys are heard of.",
            lambda: self.metadata.is_fresh,
        )
        self.groups = ConsumerGroups(environment, self.metadata, self.streams)
        self.retention = Retention(
            environment, self.metadata, self.streams, self.groups, settling, loghub, self.metrics
        )
        self._controls = Controls(self.catalog, self.streams, self.groups)

    @cached_property
    def decoding(self) -> Turns:
        """Of all requests that are decoded, a slice at a time: however many there are at once, a
        turn of the loop does a few slices.
        """
        return Turns(DECODING)

    async def start(self) -> None:
        await self.metadata.start()
        self.retention.start()

    async def close(self) -> None:
        await self.retention.close()
        await self.metadata.close()

    async def _forget(self, project: str, logstore: str, current: Compare) -> None:
        await self.groups.delete_all(project, logstore, current)
        await self.retention.forget(project, logstore, current)

    async def control(self, key: AccessKey, control: AnyControl) -> Any:
        """Carry out a call that changes or lists something, if the key may."""
        return await self._controls.carry_out(key, control)

    async def describe(self, project: str, logstore: str) -> list[ShardDetail]:
        """Each shard, what it holds, and who needs it."""
        required = await self.groups.required_positions(project, logstore)
        found = []
        for shard in await self.streams.shards(project, logstore):
            bounds = await self.streams.bounds(shard)
            needed = required.get(shard.id)
            found.append(
                ShardDetail(
                    shard=shard,
                    first=str(bounds.first),
                    next=str(bounds.next),
                    appended_bytes=bounds.appended_bytes,
                    required=None if needed is None else str(max(needed.position, bounds.first)),
                    required_by="" if needed is None else needed.group,
                )
            )
        return found
