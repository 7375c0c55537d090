"""`AsyncRaftClient`: proposes to and reads from groups wherever their leaders are.

Commands given in one turn of the loop travel together. Each is carried out exactly once: it has a
number in a session, and is repeated under that number until it is answered or time is up.
"""

import asyncio
from collections.abc import Awaitable, Coroutine, Mapping
from functools import partial
from typing import Any, Final, Self, TypeVar

from raftwood.base.deadlines import within
from raftwood.base.environment import Environment
from raftwood.base.errors import (
    ConnectionLost,
    DeadlineExceeded,
    NotFound,
    NotLeader,
    Overloaded,
    ProtocolError,
    RaftwoodError,
    SessionExpired,
    Unavailable,
)
from raftwood.base.futures import fail
from raftwood.base.logs import get_logger
from raftwood.net import Method, Payload
from raftwood.net.stores import ATTEMPT_MS, ClientNetwork, Stores, silence
from raftwood.raft.admin import STATUS, RaftAdmin
from raftwood.raft.client_protocol import (
    HEARTBEAT,
    PROPOSE,
    READ,
    REGISTER,
    RENEW,
    Proposal,
    decode_results,
    encode_proposal,
    encode_read,
    encode_register_request,
)
from raftwood.raft.sessions import NONCE_BYTES, WINDOW, decode_session


class CommandBatch:
    """Commands that travel together, and their waiting callers."""

    __slots__ = (
        "asked",
        "attempts",
        "commands",
        "deadline",
        "first_sequence",
        "futures",
        "session",
        "size",
    )

    def __init__(self, deadline: float) -> None:
        self.commands: list[bytes] = []
        self.futures: list[asyncio.Future[bytes]] = []
        self.size = 0
        self.deadline = deadline
        self.session = 0
        self.first_sequence = 0
        self.attempts = 0
        self.asked = 0
        """The store that the last attempt asked."""

    def succeed(self, results: list[bytes | RaftwoodError]) -> None:
        for future, result in zip(self.futures, results, strict=True):
            if future.done():
                continue
            if isinstance(result, bytes):
                future.set_result(result)
            else:
                fail(future, result)

    def fail(self, error: RaftwoodError) -> None:
        for future in self.futures:
            # One each: a traceback grows if several tasks raise the same exception.
            fail(future, type(error)(error.message))


class ClientSession:
    """A client's session in one group: its sequence numbers."""

    __slots__ = ("freed", "next_sequence", "number", "registering", "under_way")

    def __init__(self) -> None:
        self.freed = asyncio.Event()
        self.number = 0
        self.registering: asyncio.Task[int] | None = None
        self.next_sequence = 1
        self.under_way: dict[int, None] = {}
        """First sequences of the unanswered batches, in order."""

    @property
    def acknowledged(self) -> int:
        return next(iter(self.under_way), self.next_sequence) - 1

    async def take(self, count: int) -> int:
        """Reserves `count` sequences, once the group's window has room; returns the first."""
        while self.next_sequence + count - 1 > self.acknowledged + WINDOW:
            self.freed.clear()
            await self.freed.wait()
        first = self.next_sequence
        self.next_sequence += count
        self.under_way[first] = None
        return first

    def give_back(self, first: int) -> None:
        self.under_way.pop(first, None)
        self.freed.set()


LEARN_S = 10.0
"""How often an active client asks for the members of its groups."""
BATCH_BYTES_MAX = 1 << 18
BATCH_COMMANDS_MAX = WINDOW // 4
WAITING_MAX = 100_000
_OLDER: Final = {RENEW: PROPOSE, HEARTBEAT: READ}
"""The methods of release 0.1.0 with the same effect, but without priority."""
_Result = TypeVar("_Result")
_log = get_logger("raft-client")


class AsyncRaftClient:
    """A client of raft groups, usable as a context manager; `stores` are some stores by number."""

    def __init__(
        self, environment: Environment, network: ClientNetwork, stores: Mapping[int, str]
    ) -> None:
        self._environment = environment
        self._loop = asyncio.get_running_loop()
        self._stores = Stores(environment, network, stores)
        self.admin = RaftAdmin(self._stores)
        self._open: dict[tuple[int, bool, int], CommandBatch] = {}
        self._unanswered: dict[CommandBatch, None] = {}
        self._sessions: dict[int, ClientSession] = {}
        self._tasks: dict[asyncio.Task[Any], None] = {}
        self._waiting = 0
        self._is_learning = False
        self._used: dict[int, None] = {}
        """Groups used since the client last asked for their members."""
        self._is_closed = False

    async def __aenter__(self) -> Self:
        self._run(self._keep_learning())
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """Closes the client; unanswered commands fail with `ConnectionLost`, outcome unknown."""
        self._is_closed = True
        for task in [*self._tasks]:
            task.cancel()
        if self._tasks:
            await asyncio.wait([*self._tasks])
        await self._stores.close()
        for batch in [*self._unanswered]:
            reason = ConnectionLost if batch.attempts else Unavailable
            self._end(batch, reason("the client was closed"))

    def propose(
        self, group: int, command: bytes, *, timeout_ms: int, exactly_once: bool = True
    ) -> "asyncio.Future[bytes]":
        """Proposes a command; returns a future of the state machine's result or error.

        Without `exactly_once` there is no session: an unanswered command is not sent again, and
        fails with `ConnectionLost` or `DeadlineExceeded`, its outcome unknown.
        """
        if self._is_closed:
            raise Unavailable("the client is closed")
        if self._waiting >= WAITING_MAX:
            raise Overloaded(f"{self._waiting} commands wait for an answer: wait for some")
        key = (group, exactly_once, timeout_ms)
        batch = self._open.get(key)
        if (
            batch is None
            or batch.size + len(command) > BATCH_BYTES_MAX
            or len(batch.commands) >= BATCH_COMMANDS_MAX
        ):
            batch = self._open[key] = CommandBatch(self._loop.time() + timeout_ms / 1000)
            self._unanswered[batch] = None
            self._used[group] = None
            self._loop.call_soon(self._send, key, batch)
        future: asyncio.Future[bytes] = self._loop.create_future()
        batch.commands.append(command)
        batch.futures.append(future)
        batch.size += len(command)
        self._waiting += 1
        return future

    def _send(self, key: tuple[int, bool, int], batch: CommandBatch) -> None:
        if self._open.get(key) is batch:
            del self._open[key]
        if self._is_closed:
            return
        group, exactly_once, _ = key
        if exactly_once:
            self._run(self._drive(group, batch))
            return
        try:
            store, timeout_ms = self._stores.guess(group), self._remaining_ms(batch.deadline)
            answer = self._attempt(group, batch, None, store, timeout_ms)
        except RaftwoodError:
            self._run(self._drive_once(group, batch))
        else:
            answer.add_done_callback(partial(self._answered_once, group, batch))

    def _attempt(
        self,
        group: int,
        batch: CommandBatch,
        session: ClientSession | None,
        store: int,
        timeout_ms: int,
    ) -> "asyncio.Future[Payload]":
        batch.attempts += 1
        proposal = Proposal(
            group,
            batch.commands,
            batch.session,
            batch.first_sequence,
            session.acknowledged if session is not None else 0,
        )
        batch.asked = store
        return self._stores.channel(store).call(PROPOSE, encode_proposal(proposal), timeout_ms)

    # Without a session

    def _answered_once(
        self, group: int, batch: CommandBatch, answer: "asyncio.Future[Payload]"
    ) -> None:
        error = None if answer.cancelled() else answer.exception()
        if answer.cancelled() or self._is_closed:
            return  # `close` ends the batch
        if error is None:
            self._succeed(batch, answer.result())
        elif isinstance(error, Unavailable | NotFound) and not isinstance(error, ConnectionLost):
            self._note(group, error, batch.asked)
            self._run(self._drive_once(group, batch))
        elif isinstance(error, RaftwoodError):
            self._note(group, error, batch.asked)
            self._end(batch, error)
        else:
            raise error

    async def _drive_once(self, group: int, batch: CommandBatch) -> None:
        """Repeats a batch as long as it certainly was not carried out."""
        for pause_s in self._stores.pauses_s():
            await asyncio.sleep(pause_s)
            remaining_ms = self._remaining_ms(batch.deadline)
            if remaining_ms <= 0:
                self._end(batch, silence(f"group {group}"))
                return
            try:
                store = self._stores.guess(group)
                answer = self._attempt(group, batch, None, store, remaining_ms)
            except RaftwoodError as error:
                self._note(group, error, batch.asked)  # nothing was sent
                continue
            try:
                self._succeed(batch, await answer)
            except ConnectionLost as error:
                self._note(group, error, batch.asked)
                self._end(batch, error)
            except (Unavailable, NotFound) as error:
                self._note(group, error, batch.asked)
                continue
            except RaftwoodError as error:
                self._end(batch, error)
            return

    # With a session

    async def _drive(self, group: int, batch: CommandBatch) -> None:
        try:
            await self._drive_in_session(group, batch)
        except RaftwoodError as error:
            self._end(batch, error)

    async def _drive_in_session(self, group: int, batch: CommandBatch) -> None:
        while True:
            session = self._sessions.get(group)
            if session is None:
                session = self._sessions[group] = ClientSession()
            batch.session = session.number or await self._register(group, session, batch.deadline)
            remaining_ms = max(0, self._remaining_ms(batch.deadline))
            async with within(remaining_ms, f"the wait for others of the session in group {group}"):
                batch.first_sequence = await session.take(len(batch.commands))
            try:
                answer = await self._stores.ask_until_answered(
                    group,
                    partial(self._attempt, group, batch, session),
                    partial(self._note, group),
                    what=f"group {group}",
                    deadline=batch.deadline,
                )
                self._succeed(batch, answer, is_session=True)
                return
            except SessionExpired:
                if self._sessions.get(group) is session:
                    del self._sessions[group]
                if batch.attempts > 1:
                    raise  # an earlier attempt may have been carried out
                batch.attempts = 0
            finally:
                session.give_back(batch.first_sequence)

    async def _register(self, group: int, session: ClientSession, deadline: float) -> int:
        """Registers a session; many batches may wait for it, each until its own deadline."""
        while not session.number:
            if session.registering is None or session.registering.done():
                session.registering = self._run(self._registered(group, deadline))
            registering = session.registering
            remaining_ms = max(0, self._remaining_ms(deadline))
            await asyncio.wait([registering], timeout=remaining_ms / 1000)
            try:
                if not registering.done():
                    raise silence(f"group {group}")
                session.number = registering.result()
            except DeadlineExceeded:
                if self._remaining_ms(deadline) <= 0:
                    raise
        return session.number

    async def _registered(self, group: int, deadline: float) -> int:
        nonce = self._environment.random.randbytes(NONCE_BYTES)
        request = encode_register_request(group, nonce)
        answer = await self._ask(group, REGISTER, request, deadline)
        return decode_session(answer)

    # Reads

    async def read(
        self,
        group: int,
        query: bytes,
        *,
        timeout_ms: int,
        is_stale: bool = False,
        wait_ms: int = 0,
    ) -> bytes:
        """Asks the group's state machine; the answer includes all that was answered before the
        call.

        A question that can wait for a change waits at the store, for up to `wait_ms`.
        """
        request = encode_read(group, query, is_stale=is_stale, wait_ms=wait_ms)
        deadline = self._loop.time() + (timeout_ms + wait_ms) / 1000
        return await self._ask(group, READ, request, deadline, wait_ms)

    # Leases of others

    async def renew(self, group: int, command: bytes, *, timeout_ms: int) -> bytes:
        """Like `propose`, for commands that may be done twice: the store begins it before clients'
        other requests, and it does not wait for other commands of this client.
        """
        request = encode_proposal(Proposal(group, [command]))
        deadline = self._loop.time() + timeout_ms / 1000
        (result,) = decode_results(await self._ask(group, RENEW, request, deadline))
        if isinstance(result, RaftwoodError):
            raise result
        return result

    async def heartbeat(
        self, group: int, query: bytes, *, timeout_ms: int, wait_ms: int = 0
    ) -> bytes:
        """Like `read`, but before clients' other requests."""
        request = encode_read(group, query, is_stale=False, wait_ms=wait_ms)
        deadline = self._loop.time() + (timeout_ms + wait_ms) / 1000
        return await self._ask(group, HEARTBEAT, request, deadline, wait_ms)

    # Helpers

    async def _ask(
        self, group: int, method: Method, request: bytes, deadline: float, wait_ms: int = 0
    ) -> bytes:
        """Asks until there is an answer; only for requests that may be repeated."""
        self._used[group] = None
        asking, older = method, _OLDER.get(method)

        def attempt(store: int, timeout_ms: int) -> Awaitable[Payload]:
            return self._stores.channel(store).call(asking, request, timeout_ms)

        def failed(error: RaftwoodError, asked: int) -> None:
            nonlocal asking
            if self._is_closed:
                raise ConnectionLost("the client was closed")
            # A store of 0.1.0 lacks the method; a store that lacks the group answers so twice.
            if older is not None and asking is method and isinstance(error, NotFound):
                asking = older
            else:
                asking = method
                self._note(group, error, asked)

        answer = await self._stores.ask_until_answered(
            group,
            attempt,
            failed,
            what=f"group {group}",
            deadline=deadline,
            wait_ms=wait_ms,
        )
        return bytes(answer)

    def _note(self, group: int, error: RaftwoodError, asked: int) -> None:
        self._stores.note_failure(group, error, asked=asked)
        leader = error.leader if isinstance(error, NotLeader) else 0
        if leader and leader not in self._stores.known() and not self._is_learning:
            self._is_learning = True
            self._run(self._learn(group))

    async def _keep_learning(self) -> None:
        """Regularly asks for the stores of used groups, before all known ones are replaced."""
        while True:
            await asyncio.sleep(LEARN_S)
            group = next(iter(self._used), None)
            if group is None:
                continue
            del self._used[group]
            try:
                status = await self._stores.leader(group).ask(STATUS, group, ATTEMPT_MS)
                self._stores.learn(status.addresses)
            except RaftwoodError as error:
                _log.debug("members not learnt", group=group, reason=error.message)

    async def _learn(self, group: int) -> None:
        """Asks for the addresses of a group's members: its leader is an unknown store."""
        try:
            await self.admin.leader_status(group, timeout_ms=ATTEMPT_MS)
        except RaftwoodError as error:
            _log.debug("leader not found", group=group, reason=error.message)
        finally:
            self._is_learning = False

    def _succeed(self, batch: CommandBatch, answer: Payload, *, is_session: bool = False) -> None:
        try:
            results = decode_results(answer)
            if len(results) != len(batch.futures):
                raise ProtocolError("a store answered another number of commands than were sent")
        except RaftwoodError as error:
            self._end(batch, error)
            return
        if is_session and isinstance(results[0], SessionExpired):
            raise results[0]
        self._forget_batch(batch)
        batch.succeed(results)

    def _end(self, batch: CommandBatch, error: RaftwoodError) -> None:
        self._forget_batch(batch)
        batch.fail(error)

    def _forget_batch(self, batch: CommandBatch) -> None:
        del self._unanswered[batch]
        self._waiting -= len(batch.futures)

    def _remaining_ms(self, deadline: float) -> int:
        return int((deadline - self._loop.time()) * 1000)

    def _run(self, work: Coroutine[Any, Any, _Result]) -> "asyncio.Task[_Result]":
        task = self._loop.create_task(work)
        self._tasks[task] = None
        task.add_done_callback(self._forget)
        return task

    def _forget(self, task: "asyncio.Task[Any]") -> None:
        self._tasks.pop(task, None)
        error = None if task.cancelled() else task.exception()
        if error is not None and not isinstance(error, RaftwoodError):
            _log.error("a request failed", error=repr(error))
