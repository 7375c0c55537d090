"""`Access`: who may do what. Keys are made by operators, and kept in the metastore."""

import base64
from typing import Final

from raftwood.base.environment import Environment
from raftwood.base.errors import InvalidInput, NotFound, PermissionDenied
from raftwood.base.names import checked_name
from raftwood.loghub.errors import ProjectNotFound
from raftwood.loghub.model import AccessKey, Role, allows
from raftwood.loghub.server.metadata import KEYS, Metadata, access_key_key

EVERYWHERE: Final = "*"
_ID_BYTES: Final = 12
_SECRET_BYTES: Final = 30


class Access:
    """What is known of keys is the copy of the metadata: a key that was revoked works for a moment
    still.
    """

    def __init__(self, environment: Environment, metadata: Metadata) -> None:
        self._environment = environment
        self._metadata = metadata

    def key(self, number: str) -> AccessKey | None:
        return self._metadata.copy(access_key_key(number), AccessKey)

    async def find(self, number: str) -> AccessKey | None:
        """As `key`, looked up where it is not known: it may be new."""
        return self.key(number) or await self._metadata.fresh(access_key_key(number), AccessKey)

    async def create(self, roles: dict[str, Role], *, description: str = "") -> AccessKey:
        """A new key, with its secret."""
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
        """From now on, or within a moment, nobody gets in with it."""

        def remove(known: AccessKey | None) -> None:
            if known is None:
                raise NotFound(f"there is no key {number[:140]}: list the keys")

        await self._metadata.change(access_key_key(number), AccessKey, remove)


def check_role(key: AccessKey, project: str, needed: Role) -> None:
    """`ProjectNotFound` without any role there, so that a stranger learns nothing of it."""
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
