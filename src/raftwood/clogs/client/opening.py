"""A shipper as settings describe it: its key, whom it trusts, and what tells it of its ring."""

import socket
from collections.abc import AsyncIterator, Sequence
from typing import Final

from raftwood.base.environment import Environment
from raftwood.base.errors import InvalidConfiguration
from raftwood.clogs.client.links import Access, Links
from raftwood.clogs.client.pending import MaskLines
from raftwood.clogs.client.settings import ClogsClientSettings
from raftwood.clogs.client.shipper import AsyncShipper
from raftwood.clogs.configuration.file_source import FileSource
from raftwood.clogs.configuration.server_source import ServerSource
from raftwood.clogs.configuration.text import check_configuration, configuration_digest
from raftwood.clogs.masking import Masking, MaskRule, built_in_rules
from raftwood.clogs.model import LogServer, RingConfiguration, VersionedConfiguration
from raftwood.clogs.seams import ConfigurationSource
from raftwood.clogs.wire import CONFIGURATION, ConfigurationAnswer, ConfigurationRequest
from raftwood.net import ClientTls, Secret, TlsFiles
from raftwood.net.store_names import split_address

_ANSWER_MS: Final = 10_000
_CONNECT_S: Final = 5.0
_OTHERS_ASKED: Final = 3
"""Servers that are asked for configurations beside those of the settings."""


async def open_shipper(
    environment: Environment,
    settings: ClogsClientSettings,
    *,
    tags: Sequence[tuple[str, str]] = (),
    mask_rules: Sequence[MaskRule] = (),
) -> AsyncShipper:
    """A shipper that takes lines at once. `mask_rules` see what the built-in `masks` have left."""
    mask = mask_of(settings.masks, mask_rules)
    access = access_of(settings)
    return await AsyncShipper.start(
        environment,
        settings,
        access,
        configuration_source(environment, settings, access),
        host=socket.gethostname(),
        tags=tags,
        mask=mask,
    )


def mask_of(masks: Sequence[str], mask_rules: Sequence[MaskRule] = ()) -> MaskLines | None:
    """What masks a batch's lines; `InvalidConfiguration` for a rule that cannot be used."""
    if not masks and not mask_rules:
        return None
    return Masking([*built_in_rules(masks), *mask_rules]).mask_lines


def access_of(settings: ClogsClientSettings) -> Access:
    """The access key, and whom to trust."""
    if not settings.access_key or not settings.access_secret:
        raise InvalidConfiguration(
            "a shipper needs an access key: make one by `raftwood key create PROJECT=writer`, and "
            "set clogs_client.access_key and access_secret"
        )
    tls = None
    if settings.authorities:
        tls = ClientTls(TlsFiles(authorities=settings.authorities))
    secret = Secret(settings.access_secret.reveal().encode())
    return Access(key_id=settings.access_key, secret=secret, tls=tls)


def configuration_source(
    environment: Environment, settings: ClogsClientSettings, access: Access
) -> ConfigurationSource:
    """The file, where one is named; else the servers, of which those in the settings are known."""
    if settings.configuration_file:
        return FileSource(environment, settings.configuration_file)
    return _AskedServers(environment, settings, access)


def first_configuration(addresses: Sequence[str]) -> VersionedConfiguration:
    """Of servers that are known by their addresses alone, before anybody has told more."""
    servers = [LogServer(host, port) for host, port in map(split_address, addresses)]
    configuration = RingConfiguration(tuple(servers))
    check_configuration(configuration)
    return VersionedConfiguration(0, configuration_digest(configuration), configuration)


class _AskedServers:
    """The servers of the settings, then what any of them tells of its ring."""

    def __init__(
        self, environment: Environment, settings: ClogsClientSettings, access: Access
    ) -> None:
        self._first = first_configuration(settings.servers)
        self._random = environment.random
        self._links = Links(environment, access, _ignore)
        self._source = ServerSource(environment, self._ask, settings.ring)

    async def changes(self) -> AsyncIterator[VersionedConfiguration]:
        yield self._first
        self._links.update(self._first.configuration.servers)
        async for each in self._source.changes():
            self._links.update(self._asked(each.configuration.servers))
            yield each

    def _asked(self, servers: Sequence[LogServer]) -> list[LogServer]:
        """Those of the settings, which may all be gone one day, and some of the ring."""
        first = self._first.configuration.servers
        addresses = {each.address for each in first}
        others = [each for each in servers if each.address not in addresses]
        return [*first, *self._random.sample(others, min(len(others), _OTHERS_ASKED))]

    async def _ask(self, request: ConfigurationRequest) -> ConfigurationAnswer:
        channel = await self._links.any_channel(_CONNECT_S)
        return await channel.ask(CONFIGURATION, request, request.wait_ms + _ANSWER_MS)

    async def close(self) -> None:
        await self._source.close()
        await self._links.close()


def _ignore(_: str) -> None:
    """Who cannot be reached is asked again later."""
