"""A client's view of a table's nodes: the map of slots, a connection to each node."""

import asyncio
import ssl
from collections.abc import Coroutine, Sequence
from typing import Any, Final, Literal, TypeVar

import msgspec

from raftwood.base.environment import Environment
from raftwood.base.errors import (
    InvalidInput,
    ProtocolError,
    RaftwoodError,
    Unauthenticated,
    Unavailable,
)
from raftwood.net.identity import split_address
from raftwood.net.tls import ClientTls
from raftwood.zeppelin.client.connection import SILENCE_S_MAX, NodeConnection
from raftwood.zeppelin.client.errors import judged
from raftwood.zeppelin.resp import ErrorAnswer, request, requests
from raftwood.zeppelin.slots import SLOTS


class SlotMap:
    """The nodes of a table's slots, as of an epoch; corrected as slots turn out to have moved."""

    __slots__ = ("addresses", "epoch", "masters", "only", "replicas", "told")

    def __init__(self, epoch: int = -1) -> None:
        self.epoch = epoch
        self.masters: list[str | None] = [None] * SLOTS
        """`HOST:PORT` by slot."""
        self.told = self.masters
        """The masters without corrections: all slots of a partition have the same master."""
        self.replicas: list[Sequence[str]] = [()] * SLOTS
        self.addresses: list[str] = []
        """Addresses of all nodes that have slots."""
        self.only: str | None = None
        """The master of all slots, if there is only one."""

    @classmethod
    def decoded(cls, answer: Any, *, epoch: int) -> "SlotMap":
        """Decodes an answer to CLUSTER SLOTS."""
        found = cls(epoch)
        known: dict[str, None] = {}
        try:
            for first, last, *nodes in answer:
                addresses = [_address(host, port) for host, port, *_ in nodes]
                count = last - first + 1
                if not 0 <= first <= last < SLOTS or not addresses:
                    raise ValueError(f"slots {first} to {last} of {len(addresses)} nodes")
                found.masters[first : last + 1] = addresses[:1] * count
                found.replicas[first : last + 1] = [tuple(addresses[1:])] * count
                known.update(dict.fromkeys(addresses))
        except (TypeError, ValueError) as error:
            raise ProtocolError(
                f"a node told who has which slots, and it is no such: {error}"
            ) from error
        found.addresses = list(known)
        first_master = found.masters[0]
        if found.masters.count(first_master) == SLOTS:
            found.only = first_master
        return found

    def moved(self, slot: int, address: str) -> None:
        """Takes a node's redirection for a slot."""
        if self.masters[slot] != address:
            if self.masters is self.told:
                self.masters = list(self.told)
            self.masters[slot] = address
        if address not in self.addresses:
            self.addresses.append(address)

    @property
    def distinct_masters(self) -> list[str]:
        return list(dict.fromkeys(each for each in self.masters if each is not None))


def _address(host: Any, port: Any) -> str:
    if not isinstance(host, bytes) or not host or not isinstance(port, int):
        raise ValueError(f"{host!r}:{port!r} is no address")
    name = host.decode()
    return f"[{name}]:{port}" if ":" in name else f"{name}:{port}"


# A client's view of a table's nodes: the map of slots, and a connection to each node.
#
# Connections and the map are made on demand, each by one task at a time, however many callers ask.

ReadFrom = Literal["masters", "replicas"]
Result = TypeVar("Result")

ADDRESSES_MAX: Final = 64
CONNECT_S_MAX: Final = 3.0
ASK_MAP_S_MAX: Final = 3.0
MAPS_EVERY_S: Final = 0.02
"""Least interval of two requests for the map."""
_ASKED_AT_ONCE: Final = 3
_MAP: Final = requests([[b"CLUSTER", b"INFO"], [b"CLUSTER", b"SLOTS"]])
_EPOCH: Final = "cluster_current_epoch:"


class KvAccess(msgspec.Struct, frozen=True, kw_only=True):
    """Addresses of nodes, the client's login, and the replicas that it reads from."""

    addresses: tuple[str, ...]
    user: str
    password: str
    tls: ClientTls | None = None
    read_from: ReadFrom = "masters"
    silence_s_max: float = SILENCE_S_MAX
    """Silence after which a node that owes an answer is given up."""


def addresses_of(given: str | Sequence[str]) -> tuple[str, ...]:
    """Parses addresses: a list, or one text with commas."""
    parts = given.split(",") if isinstance(given, str) else given
    found = tuple(each.strip() for each in parts if each.strip())
    if not 0 < len(found) <= ADDRESSES_MAX:
        raise InvalidInput(f"give 1 to {ADDRESSES_MAX} addresses of nodes, not {len(found)}")
    for address in found:
        split_address(address)
    return found


class NodePool:
    """The nodes of a table. Call `start`, and `close` when done."""

    def __init__(self, environment: Environment, access: KvAccess) -> None:
        self._access = access
        self._loop = asyncio.get_running_loop()
        self.map = SlotMap()
        self.looks = 0
        """How often the map was fetched: a caller that finds it wrong passes the count it saw."""
        self._looked_at = float("-inf")
        self._turn = environment.random.randrange(1 << 16)
        self._links: dict[str, NodeConnection] = {}
        self._connecting: dict[str, asyncio.Task[NodeConnection]] = {}
        self._looking: asyncio.Task[None] | None = None
        self.is_closed = False

    async def start(self, timeout_s: float) -> None:
        """Fetches the map of slots; one answering node is enough."""
        deadline = self._loop.time() + timeout_s
        while True:
            try:
                async with asyncio.timeout_at(deadline):
                    await self.look(self.looks)
            except TimeoutError:
                raise Unavailable(
                    f"no node of {', '.join(self._access.addresses)} answered in {timeout_s:g} s: "
                    "is one started?"
                ) from None
            except Unavailable:
                if self._loop.time() + MAPS_EVERY_S >= deadline:
                    raise
                await asyncio.sleep(MAPS_EVERY_S)
            else:
                return

    async def close(self) -> None:
        self.is_closed = True
        tasks = [*self._connecting.values(), *([self._looking] if self._looking else [])]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        for link in list(self._links.values()):
            await link.close()
        self._links.clear()

    # Selecting a node.

    def place(self, slot: int, *, reads: bool, turn: int | None = None) -> str | None:
        """Returns the address for a request on a slot; None if no node has it."""
        if reads and self._access.read_from == "replicas":
            replicas = self.map.replicas[slot]
            if replicas:
                if turn is None:
                    self._turn += 1
                    turn = self._turn
                return replicas[turn % len(replicas)]
        return self.map.masters[slot]

    def link(self, address: str | None) -> NodeConnection | None:
        """Returns the open connection to a node, if there is one."""
        link = self._links.get(address) if address is not None else None
        return link if link is not None and link.is_open else None

    def moved(self, slot: int, address: str) -> None:
        """Takes a node's redirection for a slot, and fetches that node's map in the background."""
        self.map.moved(slot, address)
        if self._looking is None:
            self._look_beside(address, newer=True)

    # Connections.

    async def connected(self, address: str) -> NodeConnection:
        """Returns the connection to a node, made on demand; raises `Unavailable` if that fails."""
        link = self.link(address)
        if link is not None:
            return link
        task = self._connecting.get(address)
        if task is None:
            task = self._connecting[address] = self._begin(self._connect(address))

            def done(ended: asyncio.Task[NodeConnection]) -> None:
                self._connecting.pop(address, None)
                _note_error(ended)

            task.add_done_callback(done)
        return await self._joined(task)

    async def _connect(self, address: str) -> NodeConnection:
        host, port = split_address(address)
        options: dict[str, Any] = {}
        if self._access.tls is not None:
            options = {"ssl": self._access.tls.context, "server_hostname": host}
        link = NodeConnection(address, silence_s_max=self._access.silence_s_max)
        is_done = False
        try:
            async with asyncio.timeout(CONNECT_S_MAX):
                await self._loop.create_connection(lambda: link, host, port, **options)
                await self._log_in(link)
            is_done = True
        except TimeoutError:
            raise Unavailable(f"{address} did not answer in {CONNECT_S_MAX:g} s") from None
        except ssl.SSLError as error:
            raise Unauthenticated(f"TLS with {address} failed: {error.reason}") from error
        except OSError as error:
            raise Unavailable(
                f"cannot connect to {address}: {error.strerror or error}: is the node started?"
            ) from error
        finally:
            if not is_done:
                await link.close()
        former = self._links.get(address)
        self._links[address] = link
        if former is not None:
            await former.close()
        return link

    async def _log_in(self, link: NodeConnection) -> None:
        access = self._access
        words = ["HELLO", "3", "AUTH", access.user, access.password, "SETNAME", "raftwood"]
        asked = [link.ask(request([word.encode() for word in words]))]
        if access.read_from == "replicas":
            asked.append(link.ask(request([b"READONLY"])))
        for answer in [await each for each in asked]:
            if isinstance(answer, ErrorAnswer):
                step = judged(answer)
                if isinstance(step, Unauthenticated):
                    raise Unauthenticated(f"{link.address} refuses {access.user!r}: {step.message}")
                raise Unavailable(f"{link.address} took no login: {answer.text}")

    # The map of slots.

    async def look(self, seen: int) -> None:
        """Fetches the map, unless another caller has since `looks` was `seen`."""
        if self.looks != seen:
            return
        if self._looking is None:
            self._look_beside(None, newer=False)
        assert self._looking is not None
        await self._joined(self._looking)

    def _look_beside(self, first: str | None, *, newer: bool) -> None:
        task = self._looking = self._begin(self._look(first, newer=newer))

        def done(ended: asyncio.Task[None]) -> None:
            self._looking = None
            _note_error(ended)

        task.add_done_callback(done)

    async def _look(self, first: str | None, *, newer: bool) -> None:
        await asyncio.sleep(max(self._looked_at + MAPS_EVERY_S - self._loop.time(), 0))
        try:
            wanted = self.map.epoch + 1 if newer else self.map.epoch
            found = await self._ask_some(self._whom_to_ask(first), wanted)
        finally:
            self._looked_at = self._loop.time()
            self.looks += 1
        # A map of the same epoch has nothing new, and lacks our corrections.
        if found.epoch != self.map.epoch:
            self.map = found

    def _whom_to_ask(self, first: str | None) -> list[str]:
        """Orders nodes: the one said to know more, those with a connection, the others."""
        known = [*self.map.addresses, *self._access.addresses]
        connected = [each for each in known if self.link(each) is not None]
        ordered = [*([first] if first is not None else []), *connected, *known]
        return list(dict.fromkeys(ordered))[:ADDRESSES_MAX]

    async def _ask_some(self, addresses: list[str], wanted: int) -> SlotMap:
        """Returns the first map of the wanted epoch or a later one; else the newest of all."""
        newest: SlotMap | None = None
        errors: list[RaftwoodError] = []
        for begin in range(0, len(addresses), _ASKED_AT_ONCE):
            tasks = [
                self._begin(self._ask_map(each))
                for each in addresses[begin : begin + _ASKED_AT_ONCE]
            ]
            try:
                left = tasks
                while left:
                    await asyncio.wait(left, return_when=asyncio.FIRST_COMPLETED)
                    for task in left:
                        found = task.result() if task.done() else None
                        if isinstance(found, RaftwoodError):
                            errors.append(found)
                        elif found is not None and found.epoch >= wanted:
                            return found
                        elif found is not None and (not newest or found.epoch > newest.epoch):
                            newest = found
                    left = [task for task in left if not task.done()]
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
        if newest is None:
            raise _reason(errors)
        return newest

    async def _ask_map(self, address: str) -> SlotMap | RaftwoodError:
        try:
            async with asyncio.timeout(ASK_MAP_S_MAX):
                link = await self.connected(address)
                before: list[Any] = []
                slots = await link.ask(_MAP, before=1, gathered=before)
        except TimeoutError:
            return Unavailable(f"{address} did not answer in {ASK_MAP_S_MAX:g} s")
        except RaftwoodError as error:
            return error
        for answer in (*before, slots):
            if isinstance(answer, ErrorAnswer):
                return Unavailable(f"{address} does not say who has which slots: {answer.text}")
        try:
            return SlotMap.decoded(slots, epoch=_epoch_in(before[0]))
        except ProtocolError as error:
            return error

    # Tasks.

    def _begin(self, work: Coroutine[Any, Any, Result]) -> "asyncio.Task[Result]":
        if self.is_closed:
            work.close()
            raise Unavailable("the client is closed")
        return self._loop.create_task(work)

    async def _joined(self, task: "asyncio.Task[Result]") -> Result:
        """Returns the result of a shared task, which a cancelled caller leaves to the others."""
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if task.cancelled() and self.is_closed:
                raise Unavailable("the client was closed meanwhile") from None
            raise


def _note_error(ended: "asyncio.Task[Any]") -> None:
    """Marks the task's error as retrieved; callers that still wait for the task receive it."""
    if not ended.cancelled():
        ended.exception()


def _epoch_in(info: Any) -> int:
    text = info.decode() if isinstance(info, bytes) else ""
    lines = [line for line in text.split("\r\n") if line.startswith(_EPOCH)]
    return int(lines[0].removeprefix(_EPOCH)) if lines else -1


def _reason(errors: Sequence[RaftwoodError]) -> RaftwoodError:
    for error in errors:
        if isinstance(error, Unauthenticated):
            return Unauthenticated(error.message)
    return Unavailable(
        f"no node answers: {'; '.join(dict.fromkeys(error.message for error in errors))}"
    )
