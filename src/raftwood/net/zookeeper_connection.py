"""A session with ZooKeeper for an event loop: kazoo's threads stay behind this file.

Kazoo answers on threads of its own; each answer is handed to the loop. A call whose connection is
lost ends with one of `CONNECTION_ERRORS`, and may or may not have been carried out. While there is
no connection, calls wait for one; kazoo looks for it, at any of the hosts, until `stop`.
"""

import asyncio
import logging
import re
from collections.abc import Callable
from typing import Any, Final

import msgspec
from kazoo.client import KazooClient, KazooState
from kazoo.exceptions import (
    ConnectionLoss,
    OperationTimeoutError,
    SessionExpiredError,
    SessionMovedError,
)

from raftwood.base.errors import InvalidInput, Unavailable
from raftwood.base.futures import fail

CONNECTION_ERRORS: Final = (
    ConnectionLoss,
    OperationTimeoutError,
    SessionExpiredError,
    SessionMovedError,
)
SESSION_TIMEOUT_S: Final = 6.0

_HOSTS: Final = re.compile(r"(?:[\w.-]+|\[[0-9a-fA-F:.]+\]):\d{1,5}(?:,|$)")
_CHROOT: Final = re.compile(r"(?:/(?!\.{1,2}(?:/|$))[\w.-]+)+")

# Kazoo's messages on lost connections go to the configured loggers, not to standard error.
logging.getLogger("kazoo").addHandler(logging.NullHandler())


class ZooKeeperAddress(msgspec.Struct, frozen=True):
    """The hosts of a ZooKeeper ensemble, and the node below which all is kept."""

    hosts: str
    chroot: str

    @classmethod
    def parse(cls, text: str, *, chroot: str) -> "ZooKeeperAddress":
        """Parses `HOST:PORT[,HOST:PORT][/chroot]`; `chroot` is the default."""
        hosts, slash, rest = text.partition("/")
        chroot = f"/{rest}" if slash else chroot
        if (
            not hosts
            or _HOSTS.sub("", hosts)
            or hosts.endswith(",")
            or not _CHROOT.fullmatch(chroot)
        ):
            raise InvalidInput(
                f"{text!r} is no address of ZooKeeper: write HOST:PORT[,HOST:PORT][/chroot]"
            )
        return cls(hosts, chroot)


class ZooKeeperConnection:
    """Use `start`, and `stop` when done. `on_state` receives, on the loop, if it is connected."""

    def __init__(self, hosts: str, on_state: Callable[[bool], None]) -> None:
        self._hosts = hosts
        self._on_state = on_state
        self._loop = asyncio.get_running_loop()
        self._answered = asyncio.Event()
        self.connected = False
        self.client: Any = KazooClient(
            hosts=hosts,
            timeout=SESSION_TIMEOUT_S,
            connection_retry={"max_tries": -1, "delay": 0.05, "backoff": 2, "max_delay": 0.5},
        )
        self.client.add_listener(self._state_changed)

    async def start(self, timeout_s: float) -> None:
        """Connects; raises `Unavailable` if there is no connection in time."""
        self.client.start_async()
        try:
            async with asyncio.timeout(timeout_s):
                await self._answered.wait()
        except TimeoutError:
            await self.stop()
            raise Unavailable(
                f"no ZooKeeper server answered at {self._hosts} for {timeout_s:g} s: check that "
                "it runs, and the address"
            ) from None
        except BaseException:
            await self.stop()
            raise

    async def stop(self) -> None:
        """Ends the session and its threads; calls under way are never answered."""
        self.client.remove_listener(self._state_changed)
        await asyncio.to_thread(self._stop)

    def _stop(self) -> None:
        self.client.stop()
        self.client.close()

    def _state_changed(self, state: str) -> None:
        """Called on one of kazoo's threads."""
        self._loop.call_soon_threadsafe(self._take_state, state == KazooState.CONNECTED)

    def _take_state(self, connected: bool) -> None:
        self.connected = connected
        if connected:
            self._answered.set()
        self._on_state(connected)

    def call(self, result: Any) -> asyncio.Future[Any]:
        """Returns a future for the result of one of kazoo's calls that end in `_async`."""
        answer: asyncio.Future[Any] = self._loop.create_future()

        def answered(_: Any) -> None:
            self._loop.call_soon_threadsafe(_hand_over, result, answer)

        result.rawlink(answered)
        return answer

    def told_by(self, callback: Callable[[], None]) -> Callable[[Any], None]:
        """Returns a function for kazoo's events that calls `callback` on the loop."""

        def told(_: Any) -> None:
            self._loop.call_soon_threadsafe(callback)

        return told


def _hand_over(result: Any, answer: asyncio.Future[Any]) -> None:
    if answer.done():
        return
    if result.exception is None:
        answer.set_result(result.value)
    else:
        fail(answer, result.exception)
