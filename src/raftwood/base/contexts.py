"""Contexts: client configuration files by name, in the user's configuration folder.

    $XDG_CONFIG_HOME/raftwood/contexts/NAME.toml    one file for each cluster; mode 0600
    $XDG_CONFIG_HOME/raftwood/current               the name of the context in use

A client that is given no configuration file reads the context in use. RAFTWOOD_CONTEXT names
another one; empty, it means that no context is read and none is written. A server reads none: its
settings must not depend on who starts it.
"""

import os
from collections.abc import Mapping
from contextlib import suppress
from typing import Final, Self

from raftwood.base.errors import InvalidConfiguration, NotFound
from raftwood.base.names import checked_name

CONTEXT_VARIABLE: Final = "RAFTWOOD_CONTEXT"
_SUFFIX: Final = ".toml"
# A service may have no right to look into its user's home folder: then it has no contexts.
_ABSENT: Final = (FileNotFoundError, NotADirectoryError, PermissionError)


class Contexts:
    """The contexts of one user, and which of them is in use."""

    def __init__(self, folder: str, *, chosen: str | None = None) -> None:
        """`chosen` is what RAFTWOOD_CONTEXT says, if it is set."""
        self.folder = f"{folder}/contexts"
        self._current_file = f"{folder}/current"
        self._chosen = chosen

    @classmethod
    def of(cls, environment: Mapping[str, str]) -> Self:
        """Those of the user whose environment variables these are."""
        # Without a home there are no contexts, and an attempt to write one says why.
        base = f"{environment.get('HOME', os.devnull)}/.config"
        # The specification of XDG has a relative path ignored.
        if os.path.isabs(given := environment.get("XDG_CONFIG_HOME", "")):
            base = given
        return cls(f"{base}/raftwood", chosen=environment.get(CONTEXT_VARIABLE))

    @property
    def are_off(self) -> bool:
        """Whether RAFTWOOD_CONTEXT is set to nothing: no context is read or written."""
        return self._chosen == ""

    def current(self) -> str | None:
        """The name of the context that clients use; None if there is none."""
        if self._chosen is not None:
            return checked_name("context", self._chosen) if self._chosen else None
        return self.in_use()

    def in_use(self) -> str | None:
        """The name that `use` has kept, whatever RAFTWOOD_CONTEXT says."""
        try:
            with open(self._current_file, encoding="utf-8") as file:
                name = file.read().strip()
        except _ABSENT:
            return None
        except (OSError, ValueError) as error:
            raise InvalidConfiguration(
                f"{self._current_file} cannot be read: {error}; `raftwood context use NAME` "
                "writes it anew"
            ) from error
        return checked_name("context", name) if name else None

    def names(self) -> list[str]:
        """All contexts, in order."""
        try:
            files = os.listdir(self.folder)
        except _ABSENT:
            return []
        return sorted(each.removesuffix(_SUFFIX) for each in files if each.endswith(_SUFFIX))

    def path(self, name: str) -> str:
        """The file of a context, which need not be there."""
        return f"{self.folder}/{checked_name('context', name)}{_SUFFIX}"

    def read(self, name: str) -> bytes:
        """The file of a context; `NotFound` if there is none."""
        try:
            with open(self.path(name), "rb") as file:
                return file.read()
        except (FileNotFoundError, NotADirectoryError):
            raise NotFound(
                f"there is no context {name}: `raftwood context list` shows those there are; "
                f"{CONTEXT_VARIABLE} or `raftwood context use` names another one"
            ) from None
        except OSError as error:
            raise InvalidConfiguration(
                f"context {name} cannot be read: {self.path(name)}: {error.strerror}"
            ) from error

    def write(self, name: str, data: bytes) -> None:
        """Add a context, or replace it."""
        self._write(self.path(name), data)

    def use(self, name: str) -> None:
        """Let clients use this context from now on."""
        self.read(name)
        self._write(self._current_file, f"{name}\n".encode())

    def remove(self, name: str) -> None:
        """Delete a context; if it was in use, none is from now on."""
        self.read(name)
        os.unlink(self.path(name))
        if self.in_use() == name:
            with suppress(FileNotFoundError):
                os.unlink(self._current_file)

    def _write(self, path: str, data: bytes) -> None:
        try:
            os.makedirs(self.folder, mode=0o700, exist_ok=True)
            write_privately(path, data)
        except OSError as error:
            raise InvalidConfiguration(f"{path} cannot be written: {error.strerror}") from error


def write_privately(path: str, data: bytes) -> None:
    """Write a file that its owner alone can read; a reader finds it whole or not at all."""
    # A file that is there already may be another user's, or have another mode.
    with suppress(FileNotFoundError):
        os.unlink(f"{path}.new")
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW
    with open(os.open(f"{path}.new", flags, 0o600), "wb") as file:
        file.write(data)
        file.flush()
        # Without it a power loss may leave an empty file under the new name.
        os.fsync(file.fileno())
    os.replace(f"{path}.new", path)
