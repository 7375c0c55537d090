"""The stores of a demo cluster: real processes in one folder."""

import os
import secrets
from collections.abc import Mapping, Sequence
from typing import Self

from raftwood.base.configuration import compose
from raftwood.server.child_processes import ChildProcesses, free_addresses
from raftwood.server.settings import Settings


class StoreProcesses:
    """Use it as a context manager; at its end all processes are gone."""

    def __init__(
        self,
        folder: str,
        command: Sequence[str],
        assignments: Mapping[str, int],
        *,
        first: Sequence[int],
        later: Sequence[int],
    ) -> None:
        """`command` is what `raftwood` is to do for a store, `assignments` the settings for it."""
        self._folder = folder
        self._command_words = command
        self._assignments = assignments
        stores = [*first, *later]
        self.addresses = dict(zip(stores, free_addresses(len(stores)), strict=True))
        self.config_file = f"{folder}/cluster.toml"
        members = ", ".join(f'"{store}={self.addresses[store]}"' for store in first)
        self._config = f"""\
[cluster]
name = "demo"
members = [{members}]

[secrets]
stores = "{secrets.token_urlsafe(32)}"
clients = "{secrets.token_urlsafe(32)}"
operators = "{secrets.token_urlsafe(32)}"
""".encode()
        self.children = ChildProcesses(folder)
        """Others may be started beside the stores."""

    def client_settings(self) -> Settings:
        return compose(Settings, data=self._config, file=self.config_file).settings

    async def __aenter__(self) -> Self:
        await self.children.__aenter__()
        self._write_config()
        return self

    def _write_config(self) -> None:
        # For the owner's eyes only: it holds the secrets, which no command line may show.
        descriptor = os.open(self.config_file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
        with open(descriptor, "wb") as file:
            file.write(self._config)

    async def __aexit__(self, *reason: object) -> None:
        await self.children.__aexit__(*reason)

    async def start(self, store: int, *, joins: bool = False) -> int:
        """Start a store and wait until it serves; answers its process id."""
        return await self.children.start(_name(store), self._arguments(store, joins=joins))

    def _arguments(self, store: int, *, joins: bool) -> list[str]:
        assignments = {
            **self._assignments,
            "node.store_id": store,
            "node.data_folder": f"{self._folder}/{_name(store)}",
            "node.listen": self.addresses[store],
        }
        return [
            *self._command_words,
            "--config",
            self.config_file,
            *(f"--set={name}={value}" for name, value in assignments.items()),
            *(["--join"] if joins else []),
        ]

    def stop(self, store: int) -> None:
        """Ask a store to end in order."""
        self.children.stop(_name(store))

    async def kill(self, store: int) -> None:
        """End a store with -9, and wait until it is gone."""
        await self.children.kill(_name(store))

    async def wait(self, store: int) -> int:
        """A store's exit status, once it has ended; it is killed if that takes too long."""
        return await self.children.wait(_name(store))

    def running(self) -> list[int]:
        names = self.children.running()
        return [store for store in self.addresses if _name(store) in names]

    async def end(self) -> dict[int, int]:
        """End all that run in order; the stores' exit statuses."""
        statuses = await self.children.end()
        return {
            store: statuses[_name(store)] for store in self.addresses if _name(store) in statuses
        }


def _name(store: int) -> str:
    return f"store-{store}"
