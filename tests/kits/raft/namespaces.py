"""A network namespace for each store, and a bridge on every way: a bridge that is down drops.

Neither side hears of it: both keep their carrier, and what they send is lost. Clients have ways of
their own, which stay.
"""

import itertools
import os
import re
import subprocess
from collections.abc import Sequence
from typing import Self

import psutil

from tests.kits.raft.cluster import STORES

_CLIENTS = 254
_MADE = re.compile(r"rw\d+(?=[nbc])")
"""How all that is made here begins: with the process that made it."""


class Namespaces:
    """Use it as a context manager; `wrappers` start a store in its namespace."""

    def __init__(self) -> None:
        self._prefix = f"rw{os.getpid()}"
        # Two runs on one machine are to have different networks.
        self._network = f"10.{os.getpid() >> 8 & 0xFF}.{os.getpid() & 0xFF}"
        self.hosts = {store: self._host(store) for store in STORES}
        self.wrappers = {store: ("ip", "netns", "exec", self._namespace(store)) for store in STORES}

    def _host(self, number: int) -> str:
        return f"{self._network}.{number}"

    def _namespace(self, store: int) -> str:
        return f"{self._prefix}n{store}"

    def _bridge(self, one: int, other: int) -> str:
        return f"{self._prefix}b{min(one, other)}{max(one, other)}"

    @property
    def _bridges(self) -> list[str]:
        pairs = itertools.combinations(STORES, 2)
        return [*(self._bridge(*pair) for pair in pairs), self._clients_bridge]

    @property
    def _clients_bridge(self) -> str:
        return f"{self._prefix}c"

    def __enter__(self) -> Self:
        _remove_left_behind()
        try:
            self._build()
        except BaseException:
            self._remove()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._remove()

    def _build(self) -> None:
        for bridge in self._bridges:
            _ip("link", "add", bridge, "type", "bridge")
            _ip("link", "set", bridge, "up")
        _ip("address", "add", f"{self._host(_CLIENTS)}/24", "dev", self._clients_bridge)
        for store in STORES:
            name = self._namespace(store)
            _ip("netns", "add", name)
            _ip("-n", name, "link", "set", "lo", "up")
            _ip("-n", name, "address", "add", f"{self._host(store)}/32", "dev", "lo")
            self._connect(store, _CLIENTS, self._clients_bridge)
            for other in STORES:
                if other != store:
                    self._connect(store, other, self._bridge(store, other))

    def _connect(self, store: int, target: int, bridge: str) -> None:
        """A way from a store to a target: a cable to the bridge, and a route."""
        name, near, far = self._namespace(store), f"to{target}", f"{bridge}s{store}"
        _ip("link", "add", far, "type", "veth", "peer", "name", near, "netns", name)
        _ip("link", "set", far, "master", bridge, "up")
        _ip("-n", name, "link", "set", near, "up")
        route = (f"{self._host(target)}/32", "dev", near, "src", self._host(store))
        _ip("-n", name, "route", "add", *route)

    def _remove(self) -> None:
        _remove_all(self._prefix)

    def cut(self, one: int, others: Sequence[int]) -> None:
        """All packets between a store and others are lost from now on."""
        for other in others:
            _ip("link", "set", self._bridge(one, other), "down")

    def heal(self) -> None:
        for bridge in self._bridges:
            _ip("link", "set", bridge, "up")


def _remove_left_behind() -> None:
    """What runs that were killed have made."""
    for prefix in {found.group() for name in _names() if (found := _MADE.match(name))}:
        if not psutil.pid_exists(int(prefix.removeprefix("rw"))):
            _remove_all(prefix)


def _remove_all(prefix: str) -> None:
    for name in _names():
        if name.startswith(f"{prefix}n"):
            _ip("netns", "del", name, must_succeed=False)
        elif name.startswith((f"{prefix}b", f"{prefix}c")):
            _ip("link", "del", name, must_succeed=False)


def _names() -> list[str]:
    """Of all network namespaces, and of all bridges."""
    namespaces = [line.split()[0] for line in _ip("netns", "list").splitlines()]
    bridges = _ip("-o", "link", "show", "type", "bridge").splitlines()
    return [*namespaces, *(line.split(": ")[1] for line in bridges)]


def _ip(*arguments: str, must_succeed: bool = True) -> str:
    done = subprocess.run(("ip", *arguments), capture_output=True, text=True, check=False)
    assert done.returncode == 0 or not must_succeed, f"ip {' '.join(arguments)}: {done.stderr}"
    return done.stdout
