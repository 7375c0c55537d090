"""Access rights and quotas: `AccessControl` with keys and roles, and `Quotas` of projects.

Operators create keys; the metastore stores them. A quota limits how many bytes and requests of a
project a gateway accepts per second. It is a token bucket that holds a few seconds' worth; a
request that finds it empty is refused and may be repeated. Each gateway counts for itself.
"""

import base64
from typing import Final

import msgspec

from raftwood.base.caches import LruCache
from raftwood.base.environment import Environment
from raftwood.base.errors import InvalidInput, NotFound, PermissionDenied
from raftwood.base.names import checked_name
from raftwood.loghub.errors import ProjectNotFound, QuotaExceeded
from raftwood.loghub.model import AccessKey, AccessRole, Project, allows
from raftwood.loghub.server.metadata import KEYS, Metadata, access_key_key, project_key

EVERYWHERE: Final = "*"
_ID_BYTES: Final = 12
_SECRET_BYTES: Final = 30


class AccessControl:
    """Finds keys in the copy of the metadata, so a revoked key still works for a moment."""

    def __init__(self, environment: Environment, metadata: Metadata) -> None:
        self._environment = environment
        self._metadata = metadata

    def key(self, number: str) -> AccessKey | None:
        return self._metadata.copy(access_key_key(number), AccessKey)

    async def find(self, number: str) -> AccessKey | None:
        """Like `key`, but looks up a key that is not in the copy: it may be new."""
        return self.key(number) or await self._metadata.fresh(access_key_key(number), AccessKey)

    async def create(self, roles: dict[str, AccessRole], *, description: str = "") -> AccessKey:
        """Creates a key, with its secret."""
        if not roles:
            raise InvalidInput("a key without a role is of no use: give PROJECT=ROLE, or *=ROLE")
        for project in roles:
            if project != EVERYWHERE:
                checked_name("project", project)
        random = self._environment.random
        key = AccessKey(
            id=f"RW{base64.b32encode(random.randbytes(_ID_BYTES)).decode().rstrip('=')}",
            secret=base64.urlsafe_b64encode(random.randbytes(_SECRET_BYTES)).decode(),
            roles=roles,
            created_s=self._environment.clock.wall_ns() // 1_000_000_000,
            description=description[:1000],
        )
        await self._metadata.change(access_key_key(key.id), AccessKey, lambda _: key)
        return key

    async def keys(self) -> list[AccessKey]:
        return await self._metadata.list(KEYS, AccessKey)

    async def revoke(self, number: str) -> None:
        """Revokes a key. Gateways refuse it at once, or within a moment."""

        def remove(known: AccessKey | None) -> None:
            if known is None:
                raise NotFound(f"there is no key {number[:140]}: list the keys")

        await self._metadata.change(access_key_key(number), AccessKey, remove)


def check_role(key: AccessKey, project: str, needed: AccessRole) -> None:
    """Raises `ProjectNotFound` if the key has no role there, so that the error reveals nothing."""
    has = key.role_in(project)
    if has is None:
        if project in ("", EVERYWHERE):
            raise PermissionDenied(f"key {key.id} needs the role {needed.value} in every project")
        raise ProjectNotFound(f"there is no project {project}, or key {key.id} has no role there")
    if not allows(has, needed):
        raise PermissionDenied(
            f"key {key.id} is {has.value} in project {project or EVERYWHERE}: this takes the role "
            f"{needed.value}"
        )


BURST_S: Final = 2.0
PROJECTS_MAX: Final = 10_000


class _Bucket(msgspec.Struct, gc=False):
    bytes: float
    requests: float
    filled_s: float


class Quotas:
    """Limits what a gateway accepts per project; 0 means no limit."""

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
        self._buckets: LruCache[str, _Bucket] = LruCache(PROJECTS_MAX)
        self.refused = 0

    def take(self, project: str, size: int) -> None:
        """Counts a batch of `size` bytes, or raises `QuotaExceeded`."""
        known = self._metadata.copy(project_key(project), Project)
        own = known.write_bytes_per_s_max if known is not None else 0
        byte_rate, request_rate = own or self._bytes_per_s_max, self._requests_per_s_max
        if not byte_rate and not request_rate:
            return
        now = self._environment.clock.monotonic_ns() / 1e9
        bucket = self._buckets.get(project)
        if bucket is None:
            bucket = _Bucket(byte_rate * BURST_S, request_rate * BURST_S, now)
            self._buckets.put(project, bucket)
        passed = now - bucket.filled_s
        bucket.filled_s = now
        bucket.bytes = min(byte_rate * BURST_S, bucket.bytes + byte_rate * passed)
        bucket.requests = min(request_rate * BURST_S, bucket.requests + request_rate * passed)
        # The bucket may be overdrawn once, else a batch above a burst would never get through.
        if (byte_rate and bucket.bytes <= 0) or (request_rate and bucket.requests < 1):
            self.refused += 1
            raise QuotaExceeded(
                f"project {project} puts more than {byte_rate} bytes or {request_rate} batches in "
                "a second at this gateway (0: no limit): slow down, or raise the project's quota"
            )
        # Do not count without a limit: the project would owe it as soon as it gets a limit.
        if byte_rate:
            bucket.bytes -= size
        if request_rate:
            bucket.requests -= 1
