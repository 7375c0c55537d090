"""A ring's configuration in a file that people or programs replace while clients run."""

import asyncio
import errno
from functools import partial
from typing import Final

from raftwood.base.environment import Environment
from raftwood.base.files import Close, Read, perform
from raftwood.clogs.configuration.source import FollowingSource
from raftwood.clogs.configuration.text import (
    CONFIGURATION_BYTES_MAX,
    configuration_digest,
    decode_file,
)
from raftwood.clogs.model import VersionedConfiguration

LOOK_S: Final = 1.0
"""From one look at the file to the next."""
_SETTLED_S: Final = 0.25
"""What has changed is looked at again after so long, and taken if it has not changed further: half
of a file that is being written can be a good one with half of the servers."""


class FileSource(FollowingSource):
    """Follows one file: JSON, or TOML where its name ends in .toml."""

    def __init__(self, environment: Environment, path: str) -> None:
        super().__init__(f"file {path}")
        self._files = environment.files
        self._path = path
        self._counter = 0
        self._digest = ""

    async def _follow(self) -> None:
        taken: bytes | None = None
        seen: bytes | None = None
        while True:
            found = await self._read()
            if found is None or found == taken:
                seen = None
                await asyncio.sleep(LOOK_S)
            elif taken is None or found == seen:
                self._take(partial(self._versioned, found))
                taken, seen = found, None
                await asyncio.sleep(LOOK_S)
            else:
                seen = found
                await asyncio.sleep(_SETTLED_S)

    async def _read(self) -> bytes | None:
        """The file's bytes, one more than are allowed at the most; None where it cannot be read."""
        try:
            # To close what is not open does nothing, but makes this a submission that writes: such
            # a one opens the file by its name. A reader of the same file again and again would be
            # given the one that had the name before.
            read = Read(self._path, 0, CONFIGURATION_BYTES_MAX + 1)
            _, data = await perform(self._files, Close(self._path), read)
        except OSError as error:
            reason = "there is no such file" if error.errno == errno.ENOENT else error.strerror
            self._complain(f"{self._path} cannot be read: {reason}; put one there")
            return None
        return bytes(data)

    def _versioned(self, data: bytes) -> VersionedConfiguration:
        configuration, version = decode_file(data, self._path)
        digest = configuration_digest(configuration)
        if version is None:
            # White space and the order of keys make no other version.
            self._counter += digest != self._digest
            version = self._counter
        self._digest = digest
        return VersionedConfiguration(version, digest, configuration)
