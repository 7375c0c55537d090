"""Configurations for tests."""

from raftwood.clogs.configuration import (
    LogServer,
    RingConfiguration,
    VersionedConfiguration,
    configuration_digest,
)


def ring(*names: str) -> RingConfiguration:
    return RingConfiguration(
        servers=tuple(
            LogServer(host="10.0.0.1", port=9000 + ord(name[0]), name=name) for name in names
        )
    )


def versioned(version: int, configuration: RingConfiguration) -> VersionedConfiguration:
    return VersionedConfiguration(version, configuration_digest(configuration), configuration)
