"""`Quotas`: how much a gateway takes of a project in a second, in bytes and requests.

A bucket fills with what a second may bring, and holds a few seconds' worth; who finds it empty is
refused and may come again. Each gateway counts for itself.
"""

from typing import Final

import msgspec

from raftwood.base.environment import Environment
from raftwood.loghub.errors import QuotaExceeded
from raftwood.loghub.model import Project
from raftwood.loghub.server.metadata import Metadata, project_key

BURST_S: Final = 2.0
PROJECTS_MAX: Final = 10_000


class _Bucket(msgspec.Struct, gc=False):
    bytes: float
    requests: float
    filled_s: float


class Quotas:
    """0 stands for no limit."""

    def __init__(
        self,
        environment: Environment,
        metadata: Metadata,
        *,
        bytes_per_s_max: int,
        requests_per_s_max: int,
    ) -> None:
        self._environment = environment
        self._metadata = metadata
        self._bytes_per_s_max = bytes_per_s_max
        self._requests_per_s_max = requests_per_s_max
        self._buckets: dict[str, _Bucket] = {}
        self.refused = 0

    def take(self, project: str, size: int) -> None:
        """Count a batch of so many bytes, or raise `QuotaExceeded`."""
        known = self._metadata.copy(project_key(project), Project)
        own = known.write_bytes_per_s_max if known is not None else 0
        byte_rate, request_rate = own or self._bytes_per_s_max, self._requests_per_s_max
        if not byte_rate and not request_rate:
            return
        now = self._environment.clock.monotonic_ns() / 1e9
        bucket = self._buckets.get(project)
        if bucket is None:
            if len(self._buckets) >= PROJECTS_MAX:
                del self._buckets[next(iter(self._buckets))]
            bucket = self._buckets[project] = _Bucket(
                byte_rate * BURST_S, request_rate * BURST_S, now
            )
        passed = now - bucket.filled_s
        bucket.filled_s = now
        bucket.bytes = min(byte_rate * BURST_S, bucket.bytes + byte_rate * passed)
        bucket.requests = min(request_rate * BURST_S, bucket.requests + request_rate * passed)
        # What is there may be overdrawn once, else a batch above a burst would never get through.
        if (byte_rate and bucket.bytes <= 0) or (request_rate and bucket.requests < 1):
            self.refused += 1
            raise QuotaExceeded(
                f"project {project} puts more than {byte_rate} bytes or {request_rate} batches in "
                "a second at this gateway (0: no limit): slow down, or raise the project's quota"
            )
        # What has no limit is not counted, or it would be owed once it gets one.
        if byte_rate:
            bucket.bytes -= size
        if request_rate:
            bucket.requests -= 1
