"""`Catalog`: projects and logstores, made, changed, listed and removed."""

import asyncio
from collections.abc import Callable, Collection
from typing import Any, Final

from msgspec.structs import asdict, replace

from raftwood.base.environment import Environment
from raftwood.base.errors import Conflict, Unavailable
from raftwood.base.seams import MetaStore
from raftwood.loghub.controls import LogstoreOptions
from raftwood.loghub.errors import (
    InvalidParameter,
    LogstoreExists,
    LogstoreNotFound,
    ProjectExists,
    ProjectNotFound,
)
from raftwood.loghub.model import LogKind, Logstore, Project, check_stream_names
from raftwood.loghub.server.metadata import (
    ATTEMPTS_MAX,
    LOGSTORES,
    PROJECTS,
    Metadata,
    logstore_key,
    project_key,
)
from raftwood.loghub.server.settling import Settling
from raftwood.loghub.shard_rules import with_first_shards

SHARDS_AT_FIRST_MAX: Final = 128
TTL_DAYS_MAX: Final = 3650
SIZE_MAX: Final = 500
"""Of a page of a list."""
_DESCRIPTION_CHARACTERS_MAX: Final = 4096
_PAUSE_S: Final = 0.005
_PAUSE_S_MAX: Final = 0.5


class Catalog:
    """Answers are of the metastore's state now, not of the copy; put and pull use the copy."""

    def __init__(
        self,
        environment: Environment,
        metadata: Metadata,
        settling: Settling,
        log_kinds: Collection[LogKind],
    ) -> None:
        self._environment = environment
        self._metadata = metadata
        self._settling = settling
        self._log_kinds = log_kinds

    @property
    def store(self) -> MetaStore:
        return self._metadata.store

    def _now_s(self) -> int:
        return self._environment.clock.wall_ns() // 1_000_000_000

    # Projects

    async def create_project(self, name: str, *, description: str = "", owner: str = "") -> None:
        check_stream_names(name)
        _check_description(description)
        now = self._now_s()

        def create(known: Project | None) -> Project:
            if known is not None:
                raise ProjectExists(f"project {name} exists already")
            return Project(
                name=name,
                description=description,
                owner=owner,
                created_s=now,
                modified_s=now,
            )

        await self._metadata.change(project_key(name), Project, create)

    async def update_project(
        self,
        name: str,
        *,
        description: str | None = None,
        write_bytes_per_s_max: int | None = None,
    ) -> None:
        if description is not None:
            _check_description(description)
        if write_bytes_per_s_max is not None and write_bytes_per_s_max < 0:
            raise InvalidParameter("a quota of bytes per second is 0, for none, or above")

        def update(known: Project | None) -> Project:
            if known is None:
                raise _no_project(name)
            limit = write_bytes_per_s_max
            return replace(
                known,
                description=known.description if description is None else description,
                write_bytes_per_s_max=known.write_bytes_per_s_max if limit is None else limit,
                modified_s=self._now_s(),
            )

        check_stream_names(name)
        await self._metadata.change(project_key(name), Project, update)

    async def project(self, name: str) -> Project:
        check_stream_names(name)
        found = await self._metadata.fresh(project_key(name), Project)
        if found is None:
            raise _no_project(name)
        return found

    async def delete_project(self, name: str) -> None:
        """Only one without logstores; who makes one meanwhile finds the project gone, or changes
        it, so that it is looked at again.
        """
        check_stream_names(name)
        for _ in range(ATTEMPTS_MAX):
            found = await self._metadata.versioned(project_key(name), Project)
            if found is None:
                raise _no_project(name)
            total = (await self.logstores(name, size=1))[0]
            if total:
                raise Conflict(f"project {name} has {total} logstores: delete these first")
            if await self._metadata.remove(project_key(name), version=found[1]):
                return
        raise _changing(name)

    async def projects(
        self,
        *,
        offset: int = 0,
        size: int = 100,
        contains: str = "",
        is_seen: Callable[[Project], bool] = lambda _: True,
    ) -> tuple[int, list[Project]]:
        """How many there are, and a page of them."""
        _check_page(offset, size)
        found = [
            each
            for each in await self._metadata.list(PROJECTS, Project)
            if contains in each.name and is_seen(each)
        ]
        return len(found), found[offset : offset + size]

    # Logstores

    async def create_logstore(
        self,
        project: str,
        name: str,
        *,
        shard_count: int = 2,
        log: LogKind = LogKind.LOGSERVICE,
        options: LogstoreOptions = LogstoreOptions(),  # noqa: B008
    ) -> None:
        check_stream_names(project, name)
        if not 1 <= shard_count <= SHARDS_AT_FIRST_MAX:
            raise InvalidParameter(
                f"{shard_count} shards: a logstore begins with 1 to {SHARDS_AT_FIRST_MAX}"
            )
        if log not in self._log_kinds:
            raise InvalidParameter(
                f"this gateway has no {log.value} for logstore {name}: set dlog.store in its "
                "configuration, or choose another kind of log"
            )
        now = self._now_s()
        logs = [self._settling.new_log(log) for _ in range(shard_count)]
        empty = _with_options(
            Logstore(project=project, name=name, log=log, created_s=now, modified_s=now), options
        )

        await self._add(with_first_shards(empty, logs, now_s=now))
        await self._settling.settle(project, name)

    async def _add(self, logstore: Logstore) -> None:
        """With its project, which changes with it: else it might be deleted at the same time."""
        project, name = logstore.project, logstore.name
        for attempt in range(ATTEMPTS_MAX):
            owner = await self._metadata.versioned(project_key(project), Project)
            if owner is None:
                raise _no_project(project)
            if await self._metadata.fresh(logstore_key(project, name), Logstore) is not None:
                raise LogstoreExists(f"logstore {name} exists already in project {project}")
            changed = replace(owner[0], modified_s=logstore.created_s)
            if await self._metadata.set_both(
                (project_key(project), changed, owner[1]), (logstore_key(project, name), logstore)
            ):
                return
            # Others make theirs in the same project.
            longest_s = min(_PAUSE_S_MAX, _PAUSE_S * 2 ** min(attempt, 10))
            await asyncio.sleep(self._environment.random.uniform(0, longest_s))
        raise _changing(project)

    async def update_logstore(self, project: str, name: str, options: LogstoreOptions) -> None:
        def update(known: Logstore | None) -> Logstore:
            if known is None or known.is_deleting:
                raise no_logstore(project, name)
            return replace(_with_options(known, options), modified_s=self._now_s())

        check_stream_names(project, name)
        await self.project(project)
        await self._metadata.change(logstore_key(project, name), Logstore, update)

    async def logstore(self, project: str, name: str) -> Logstore:
        check_stream_names(project, name)
        found = await self._metadata.fresh(logstore_key(project, name), Logstore)
        if found is None or found.is_deleting:
            await self.project(project)
            raise no_logstore(project, name)
        return found

    async def delete_logstore(self, project: str, name: str) -> None:
        def delete(known: Logstore | None) -> Logstore:
            if known is None:
                raise no_logstore(project, name)
            return known if known.is_deleting else replace(known, is_deleting=True)

        check_stream_names(project, name)
        await self.project(project)
        await self._metadata.change(logstore_key(project, name), Logstore, delete)
        await self._settling.settle(project, name)

    async def logstores(
        self, project: str, *, offset: int = 0, size: int = 100, contains: str = ""
    ) -> tuple[int, list[str]]:
        """How many there are, and a page of their names."""
        _check_page(offset, size)
        await self.project(project)
        found = [
            each.name
            for each in await self._metadata.list(f"{LOGSTORES}{project}/", Logstore)
            if contains in each.name and not each.is_deleting
        ]
        return len(found), found[offset : offset + size]


def _with_options(logstore: Logstore, options: LogstoreOptions) -> Logstore:
    given: dict[str, Any] = {
        name: value for name, value in asdict(options).items() if value is not None
    }
    changed = replace(logstore, **given)
    if not 0 <= changed.ttl_days <= TTL_DAYS_MAX:
        raise InvalidParameter(f"a TTL of {changed.ttl_days} days: give 1 to {TTL_DAYS_MAX}, or 0")
    if changed.retained_bytes_max < 0:
        raise InvalidParameter("retained_bytes_max is 0, for no limit, or above")
    if not 1 <= changed.shards_split_max <= 256:
        raise InvalidParameter(
            f"automatic splits up to {changed.shards_split_max} shards: give 1 to 256"
        )
    if len(changed.telemetry_type) > 64:
        raise InvalidParameter("a telemetry type has up to 64 characters")
    return changed


def _check_description(description: str) -> None:
    if len(description) > _DESCRIPTION_CHARACTERS_MAX:
        raise InvalidParameter(
            f"a description has up to {_DESCRIPTION_CHARACTERS_MAX} characters: shorten it"
        )


def _check_page(offset: int, size: int) -> None:
    if offset < 0 or not 1 <= size <= SIZE_MAX:
        raise InvalidParameter(f"offset {offset}, size {size}: give 0 or more, and 1 to {SIZE_MAX}")


def _no_project(name: str) -> ProjectNotFound:
    return ProjectNotFound(f"there is no project {name}: create it, or check its name")


def _changing(project: str) -> Unavailable:
    return Unavailable(f"project {project} is changed by too many at a time: try again")


def no_logstore(project: str, name: str) -> LogstoreNotFound:
    return LogstoreNotFound(
        f"there is no logstore {name} in project {project}: create it, or check its name"
    )
