"""The client: reads and writes registers on a majority of the replicas."""

import asyncio
from collections.abc import Callable, Sequence
from typing import Any, Self, TypeVar

from raftwood.base.backoff import Backoff
from raftwood.base.environment import Environment
from raftwood.base.errors import DeadlineExceeded, Unavailable
from raftwood.net import Channel, Connection, TypedMethod, connect
from tests.kits.testing.toy.protocol import (
    CALL_TIMEOUT_MS,
    CLIENT_LIMITS,
    QUERY,
    STORE,
    StoreRequest,
    Timestamp,
    Versioned,
    client_credentials,
)
from tests.kits.testing.toy.replica import ReplicaAddress

_BACKOFF = Backoff(first_ms=50, longest_ms=400)
Request = TypeVar("Request")
Response = TypeVar("Response")


class Registers:
    """All registers of a cluster as one client sees them; use it as a context manager."""

    def __init__(
        self, environment: Environment, name: str, replicas: Sequence[ReplicaAddress]
    ) -> None:
        self._channels = [
            Channel(_connector(environment, name, replica), environment.random, _BACKOFF)
            for replica in replicas
        ]
        self._majority = len(replicas) // 2 + 1
        # Drawn anew by each process, so that a restarted writer is another one.
        self._writer = environment.random.getrandbits(48)
        self._operation = 0

    async def write(self, key: int, value: str) -> None:
        answers = await self._ask(QUERY, key, self._majority)
        counter = max(answer.timestamp.counter for answer in answers) + 1
        versioned = Versioned(self._timestamp(counter), value)
        await self._ask(STORE, StoreRequest(key, versioned), self._majority)

    async def read(self, key: int) -> str:
        answers = await self._ask(QUERY, key, self._majority)
        latest = max(answers, key=lambda answer: answer.timestamp)
        if any(answer.timestamp != latest.timestamp for answer in answers):
            # What this read has seen, no later read may miss.
            await self._write_back(key, latest)
        return latest.value

    async def repair(self, key: int) -> None:
        """Bring every replica to the latest version, and see that all agree on it."""
        everyone = len(self._channels)
        answers = await self._ask(QUERY, key, everyone)
        latest = max(answers, key=lambda answer: answer.timestamp)
        await self._ask(STORE, StoreRequest(key, latest), everyone)
        after = await self._ask(QUERY, key, everyone)
        if any(answer.timestamp < latest.timestamp for answer in after):
            raise AssertionError(f"key {key}: a replica acked {latest} and has it not: {after}")

    async def _write_back(self, key: int, latest: Versioned) -> None:
        await self._ask(STORE, StoreRequest(key, latest), self._majority)

    def _timestamp(self, counter: int) -> Timestamp:
        self._operation += 1
        return Timestamp(counter, self._writer, self._operation)

    async def _ask(
        self, method: TypedMethod[Request, Response], request: Request, needed: int
    ) -> list[Response]:
        """Ask all replicas; the first `needed` answers.

        `Unavailable` where nothing was changed, `DeadlineExceeded` where that is not known.
        """
        usable = [channel for channel in self._channels if channel.is_connected]
        if len(usable) < needed:
            raise Unavailable(f"{len(usable)} replicas can be reached, {needed} are needed")
        payload = method.encode(request)
        vote = _Vote(len(usable), needed, method.decode_response)
        for channel in usable:
            # Calls that come too late to be counted go on: they still bring replicas up to date.
            channel.call(method, payload, CALL_TIMEOUT_MS).add_done_callback(vote.answered)
        if not await vote.decided:
            message = f"{method.name}: no {needed} replicas answered in time: {vote.error}"
            raise DeadlineExceeded(message) if method is STORE else Unavailable(message)
        return vote.answers

    async def __aenter__(self) -> Self:
        for channel in self._channels:
            channel.start()
        return self

    async def __aexit__(self, *_: object) -> None:
        for channel in self._channels:
            await channel.close()


class _Vote:
    """Counts answers; decided when there are enough, or when there can't be any more."""

    def __init__(self, asked: int, needed: int, decode: Callable[[Any], Any]) -> None:
        self.answers: list[Any] = []
        self.error: BaseException | None = None
        self.decided: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._failures_left = asked - needed
        self._needed = needed
        self._decode = decode

    def answered(self, future: "asyncio.Future[Any]") -> None:
        failed = future.cancelled() or future.exception() is not None
        if self.decided.done():
            return
        if failed:
            self.error = None if future.cancelled() else future.exception()
            self._failures_left -= 1
            if self._failures_left < 0:
                self.decided.set_result(False)
            return
        self.answers.append(self._decode(future.result()))
        if len(self.answers) == self._needed:
            self.decided.set_result(True)


def _connector(environment: Environment, name: str, replica: ReplicaAddress) -> Callable[[], Any]:
    credentials = client_credentials(name, server=replica.name)

    async def dial() -> Connection:
        return await connect(
            replica.host, replica.port, credentials, environment.random, limits=CLIENT_LIMITS
        )

    return dial
