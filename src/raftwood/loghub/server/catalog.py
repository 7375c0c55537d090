"""`Catalog`: creates, changes, lists and removes projects and logstores.

`LogstoreReconciler` completes what a logstore's value has begun, no matter which gateway began it.
Every step can be repeated, by several gateways at once: logs are created, sealed and removed by
their names, and each last step is a compare-and-set that does nothing if another gateway has done
it.
"""

import asyncio
from collections.abc import Awaitable, Callable, Collection
from typing import Any, Final

from msgspec.structs import asdict, replace

from raftwood.base.backoff import Backoff
from raftwood.base.environment import Environment
from raftwood.base.errors import Conflict, NotFound, Unavailable
from raftwood.base.position import Position
from raftwood.base.seams import Compare, Logs, MetaStore
from raftwood.loghub.errors import (
    InvalidParameter,
    LogstoreExists,
    LogstoreNotFound,
    ProjectExists,
    ProjectNotFound,
)
from raftwood.loghub.model import LogKind, Logstore, Project, ShardStatus, check_stream_names
from raftwood.loghub.server.metadata import (
    ATTEMPTS_MAX,
    LOGSTORES,
    PROJECTS,
    Metadata,
    logstore_key,
    project_key,
)
from raftwood.loghub.shards import (
    LOG_PREFIX,
    RANDOM_BYTES,
    finish_creation,
    finish_delete,
    finish_hand_overs,
    is_log_name,
    is_same_logstore,
    is_settled,
    log_name,
    with_first_shards,
)
from raftwood.loghub.wire import LogstoreOptions

_AT_ONCE: Final = 16
_ROUNDS_MAX: Final = 20
"""One round completes all that was begun before it; more are needed only if others begin more."""

Forget = Callable[[str, str, Compare], Awaitable[None]]
"""Removes other keys of a logstore (project, name), as long as the compare holds."""


class LogstoreReconciler:
    """Completes what logstores' values have begun. Calls `forget` before it removes a logstore."""

    def __init__(
        self, environment: Environment, metadata: Metadata, logs: Logs, forget: Forget
    ) -> None:
        self._environment = environment
        self._metadata = metadata
        self._logs = logs
        self._forget = forget
        self._limit = asyncio.Semaphore(_AT_ONCE)

    def new_log(self, kind: LogKind) -> str:
        """Returns a name that no log has."""
        return log_name(kind, self._environment.random.randbytes(RANDOM_BYTES))

    async def settle(self, project: str, name: str) -> Logstore | None:
        """Completes all that is begun; returns the value after it, or None if it is gone."""
        key = logstore_key(project, name)
        for _ in range(_ROUNDS_MAX):
            found = await self._metadata.versioned(key, Logstore)
            if found is None or is_settled(found[0]):
                return None if found is None else found[0]
            logstore, version = found
            if logstore.is_deleting:
                await self._delete(Compare(key, version), logstore)
            else:
                await self._finish_or_look_again(key, logstore, version)
        raise Unavailable(
            f"the shards of logstore {name} change all the time: try again in a moment"
        )

    async def _finish_or_look_again(self, key: str, logstore: Logstore, version: int) -> None:
        try:
            await self._finish(key, logstore)
        except NotFound:
            # If it was deleted meanwhile, its logs are gone.
            found = await self._metadata.versioned(key, Logstore)
            if found is not None and found[1] == version:
                raise

    async def _finish(self, key: str, logstore: Logstore) -> None:
        made = [each for each in logstore.shards if each.status is ShardStatus.CREATING]
        await asyncio.gather(*(self._create(each.log) for each in made))
        sealed = [each for each in logstore.shards if each.status is ShardStatus.SEALING]
        positions = await asyncio.gather(*(self._seal(each.log) for each in sealed))
        ends = {each.id: end for each, end in zip(sealed, positions, strict=True)}
        doomed = [each for each in logstore.shards if each.status is ShardStatus.DELETING]
        await asyncio.gather(*(self._remove(each.log) for each in doomed))
        removed = [each.id for each in doomed]
        known = {each.id for each in made}

        def finish(found: Logstore | None) -> Logstore | None:
            # It may have been deleted meanwhile, and another one created under its name.
            if found is None or found.is_deleting or not is_same_logstore(found, logstore):
                return found
            new = finish_delete(finish_hand_overs(found, ends), removed)
            # If another change began meanwhile, its logs are not created yet.
            if {each.id for each in new.shards if each.status is ShardStatus.CREATING} <= known:
                new = finish_creation(new)
            return found if new == found else new

        await self._metadata.change(key, Logstore, finish)

    async def _delete(self, current: Compare, logstore: Logstore) -> None:
        await asyncio.gather(*(self._end(each.log) for each in logstore.shards))
        await self._forget(logstore.project, logstore.name, current)

        def drop(found: Logstore | None) -> Logstore | None:
            # Another one of the same name may have been created since this one was removed.
            is_same = found is not None and found.shards == logstore.shards
            return None if is_same else found

        await self._metadata.change(current.key, Logstore, drop)

    async def _create(self, log: str) -> None:
        async with self._limit:
            await self._logs.create(log)
            await self._logs.open(log)  # it has a leader then

    async def _seal(self, log: str) -> Position:
        async with self._limit:
            return await (await self._logs.open(log)).seal()

    async def _end(self, log: str) -> None:
        """Seals and removes a log. A removed log may still answer for a moment; sealed, it accepts
        nothing from a gateway that does not know of the removal.
        """
        try:
            await self._seal(log)
        except NotFound:
            return
        await self._remove(log)

    async def _remove(self, log: str) -> None:
        async with self._limit:
            await self._logs.remove(log)

    async def stray_logs(self) -> list[str]:
        """Returns logs of no shard: a late gateway created them when their logstore had been
        deleted.

        A gateway writes a log's name to the metadata before it creates the log, and no name is used
        twice. So a listed log that the metadata does not name will never be named.
        """
        names = [each for each in await self._logs.names(LOG_PREFIX) if is_log_name(each)]
        if not names:
            return []
        logstores = await self._metadata.list(LOGSTORES, Logstore)
        known = {shard.log for each in logstores for shard in each.shards}
        return [each for each in names if each not in known]

    async def remove_stray(self, log: str) -> bool:
        """Removes a stray log, but only an empty one: if the metastore lost data, the logs that
        hold records are all that is left of their logstores.
        """
        try:
            async with self._limit:
                bounds = await (await self._logs.open(log)).bounds()
        except NotFound:
            return True
        if bounds.appended_bytes:
            return False
        await self._remove(log)
        return True


SHARDS_AT_FIRST_MAX: Final = 128
TTL_DAYS_MAX: Final = 3650
SIZE_MAX: Final = 500
"""Limit of a page of a list."""
_DESCRIPTION_CHARACTERS_MAX: Final = 4096
_PAUSE: Final = Backoff(first_ms=5, longest_ms=500, jitter=1)


class Catalog:
    """Answers from the metastore's present state, not from the copy; put and pull use the copy."""

    def __init__(
        self,
        environment: Environment,
        metadata: Metadata,
        settling: LogstoreReconciler,
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
        """Deletes a project that has no logstores. A logstore that is created at the same time
        changes the project, so that one of the two compare-and-sets fails.
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
        """Returns how many there are, and a page of them."""
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
        """Creates it and changes its project in one step, against a concurrent deletion."""
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
            # Other callers create logstores in the same project.
            await asyncio.sleep(_PAUSE.delay_s(attempt, self._environment.random))
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
        """Returns how many there are, and a page of their names."""
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
