"""The stores of a demo cluster: real processes in one folder."""

import secrets
from collections.abc import Mapping, Sequence
from typing import Self

from raftwood.base.configuration import compose
from raftwood.base.contexts import write_privately
from raftwood.server.child_processes import ChildProcesses, free_addresses
from raftwood.server.settings import Settings


class StoreProcesses(ChildProcesses):
    """Use it as a context manager; others may be started beside the stores."""

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
        super().__init__(folder)
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

    def client_settings(self) -> Settings:
        return compose(Settings, data=self._config, file=self.config_file).settings

    async def __aenter__(self) -> Self:
        await super().__aenter__()
        write_privately(self.config_file, self._config)
        return self

    async def start_store(self, store: int, *, joins: bool = False) -> int:
        """Start a store and wait until it serves; answers its process id."""
        return await self.start(store_name(store), self._arguments(store, joins=joins))

    def _arguments(self, store: int, *, joins: bool) -> list[str]:
        assignments = {
            **self._assignments,
            "node.store_id": store,
            "node.data_folder": f"{self._folder}/{store_name(store)}",
            "node.listen": self.addresses[store],
        }
        return [
            *self._command_words,
            "--config",
            self.config_file,
            *(f"--set={name}={value}" for name, value in assignments.items()),
            *(["--join"] if joins else []),
        ]


def store_name(store: int) -> str:
    return f"store-{store}"
