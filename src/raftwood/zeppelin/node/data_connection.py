"""One client's connection: reads requests, answers in order, with one write for each turn.

Most requests are answered at once. A write's answer waits for its record; if the table's reads are
durable, a read's answer waits for the record that wrote the value. Requests behind it run, and
their answers are held too (`HeldAnswers`). The answers of one turn are held and released together.
A command that itself has to wait (for a login, for many values, for the end of a hand-over) stops
the requests behind it. The server does not read from a client that does not take its answers, or
that has sent more than one turn's work.

`answer_plain` is the fast path of the most frequent requests: GET, SET, MGET, MSET, INCR and others
on one key. It gives the answers of `dispatch.execute`, in one loop for all requests of a turn. It
leaves every other request (a key of another node, a name in lower case, any refusal) to
`dispatch.execute`, before it has any effect.
"""

import asyncio
from binascii import crc_hqx
from collections import deque
from collections.abc import Callable, Coroutine
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final, TypeAlias, cast

import msgspec

from raftwood.base.errors import RaftwoodError
from raftwood.net.listeners import DISPLACED, address_of
from raftwood.zeppelin.commands.command import KEY_TOO_LARGE, OUTCOME_BYTES_MAX, RedisError, Turn
from raftwood.zeppelin.commands.dispatch import SINGLE_KEY, execute
from raftwood.zeppelin.commands.session import KvSession
from raftwood.zeppelin.node.view import PartitionCopy
from raftwood.zeppelin.records import KEY_BYTES_MAX, WRITE_BYTES, Acks, KeyWrite
from raftwood.zeppelin.resp import OK, RequestLimits, Requests, error, integer
from raftwood.zeppelin.slots import SLOTS, are_in_slot, slot_of

if TYPE_CHECKING:
    from raftwood.zeppelin.node.data_server import DataServer

ACK_S_MAX: Final = 5.0
NOT_ACKED: Final = error(
    f"NOREPLICAS Not enough good replicas to write: after {ACK_S_MAX:.0f} s the write is here, and "
    "may be lost if this node is"
)
TENURE_OVER: Final = error(
    "NOREPLICAS Not enough good replicas to write: this node is no longer the master, and the "
    "write may be lost"
)
NOT_DURABLE: Final = error(
    f"NOREPLICAS Not enough good replicas to read: after {ACK_S_MAX:.0f} s what was written here "
    "last may still be lost; ask again, or let the table read the latest"
)
READ_AGAIN: Final = error(
    "TRYAGAIN this node is no longer the master, and what it has read may be lost: read again"
)

Wait: TypeAlias = tuple[int, Acks, int, bool]
"""The answer's index, the `Acks` and the sequence that it waits for, and whether it is a read: then
a failed wait tells the client to read again."""


class HeldAnswer(msgspec.Struct):
    """The answers of one turn, and what some of them wait for."""

    answers: list[bytes]
    waits: list[Wait]
    deadline: float


class HeldAnswers:
    """The held answers of one connection; `released` is called when the first ones may go."""

    __slots__ = ("_held", "_released", "_waits_at", "count", "size")

    def __init__(self, released: Callable[[], None]) -> None:
        self._held: deque[HeldAnswer] = deque()
        self._released = released
        self._waits_at: tuple[Acks, int] | None = None
        """The `Acks` waited for, and the number of the wait."""
        self.count = 0
        """Number of held answers."""
        self.size = 0
        """Their bytes."""

    def __bool__(self) -> bool:
        return bool(self._held)

    @property
    def is_paced(self) -> bool:
        """Whether the client should write less: then it may not continue before its answer."""
        return self._waits_at is not None and self._waits_at[0].is_paced

    @property
    def deadline(self) -> float:
        return self._held[0].deadline

    def hold(self, held: HeldAnswer) -> None:
        self._held.append(held)
        self.count += len(held.answers)
        self.size += sum(map(len, held.answers))
        if len(self._held) == 1:
            self._wait(held)

    def take(self, now: float) -> list[bytes]:
        """Removes and returns the answers that are done or whose time is over."""
        ready: list[bytes] = []
        while self._held and self._is_over(self._held[0], now):
            answers = self._held.popleft().answers
            self.count -= len(answers)
            self.size -= sum(map(len, answers))
            ready += answers
        if ready:
            self._forget()
        if not self._held:
            self.count = self.size = 0
        elif ready:
            self._wait(self._held[0])
        return ready

    def clear(self) -> None:
        """Drops all answers: the client has left."""
        self._held.clear()
        self._forget()

    def _forget(self) -> None:
        if self._waits_at is not None:
            acks, number = self._waits_at
            acks.forget(number)
            self._waits_at = None

    def _is_over(self, held: HeldAnswer, now: float) -> bool:
        if now < held.deadline and _awaited(held) is not None:
            return False
        for place, acks, sequence, is_read in held.waits:
            if acks.reached < sequence:
                held.answers[place] = _refusal(acks, is_read=is_read)
        return True

    def _wait(self, held: HeldAnswer) -> None:
        awaited = _awaited(held)
        if awaited is None:
            self._released()
        else:
            acks, sequence = awaited
            self._waits_at = (acks, acks.wait(sequence, self._heard))

    def _heard(self) -> None:
        self._waits_at = None
        if self._held:
            self._wait(self._held[0])


def _refusal(acks: Acks, *, is_read: bool) -> bytes:
    if is_read:
        return READ_AGAIN if acks.is_over else NOT_DURABLE
    return TENURE_OVER if acks.is_over else NOT_ACKED


def are_done(waits: list[Wait]) -> bool:
    """Whether every wait is over."""
    # A loop, because a generator would cost more than the rest of the function.
    for _, acks, sequence, _ in waits:  # noqa: SIM110
        if acks.reached < sequence:
            return False
    return True


def _awaited(held: HeldAnswer) -> tuple[Acks, int] | None:
    """Returns a wait that is neither done nor void; None if there is none."""
    # The last write usually completes last, so most turns wait only once.
    for _, acks, sequence, _ in reversed(held.waits):
        if acks.reached < sequence and not acks.is_over:
            return acks, sequence
    return None


ANSWERS_BYTES_MAX: Final = 4 << 20
"""Bytes of one turn's answers; above it the next requests wait for another turn."""
PLAIN: Final = frozenset((*SINGLE_KEY, b"MGET", b"MSET"))

_SLOT_MASK: Final = SLOTS - 1
_HEADS: Final = tuple(b"$%d\r\n" % length for length in range(1024))
_BREAK: Final = b"\r\n"
_COUNTER_BYTES_MAX: Final = 18
_ZERO: Final = ord("0")


def answer_plain(
    session: KvSession,
    requests: list[list[bytes]],
    begin: int,
    end: int,
    answers: list[bytes],
    waits: list[Wait],
) -> int:
    """Answers the requests from `begin` to `end`; returns the index of the first one that is not
    plain.

    `waits` gets an entry for each answer that has to wait.
    """
    copies = session.copies
    count = len(copies)
    if not count or session.transaction is not None or session.origin is not None:
        return begin
    now_ms, null, written = session.now_ms, session.dialect.null, session.written
    may_write = session.user is not None and session.user.may_write
    answers_bytes, place = 0, begin
    try:
        for place in range(begin, end):
            arguments = requests[place]
            words, name = len(arguments), arguments[0]
            if words < 2 or answers_bytes > ANSWERS_BYTES_MAX:
                return place
            key = arguments[1]
            slot = slot_of(key) if b"{" in key else crc_hqx(key, 0) & _SLOT_MASK
            copy = copies[slot * count >> 14]
            if copy is None or not copy.is_serving:
                return place
            if name == b"GET" and words == 2:
                found = copy.recent.get(key)
                if found is None or found.expires_ms:
                    data = _data_of(copy, key, now_ms)
                else:
                    data = found.data
                last_writes = copy.last_writes
                if last_writes is not None and copy.is_undone(seen := last_writes.of(key)):
                    waits.append((len(answers), copy.acks, seen, True))
                if data is None:
                    answers.append(null)
                else:
                    answers_bytes += len(data)
                    answers.append(b"$%d\r\n%b\r\n" % (len(data), data))
                continue
            if name == b"MGET":
                answer = _values(copy, slot, arguments, now_ms, null)
                if not answer:
                    return place
                if copy.is_undone(seen := copy.seen(arguments[1:])):
                    waits.append((len(answers), copy.acks, seen, True))
                answers_bytes += len(answer)
                answers.append(answer)
                continue
            sequence = 0
            answer = OK
            if name == b"SET" and words == 3 and may_write:
                data = arguments[2]
                size = len(key) + len(data) + WRITE_BYTES
                sequence = copy.write({key: KeyWrite(key, data)}, size)
            elif name == b"MSET" and may_write:
                sequence = _put_all(copy, slot, arguments)
                if not sequence:
                    return place
            elif (
                name == b"INCR" and words == 2 and may_write and (number := _next_number(copy, key))
            ):
                data = b"%d" % number
                size = len(key) + len(data) + WRITE_BYTES
                sequence = copy.write({key: KeyWrite(key, data)}, size)
                answer = integer(number)
            else:
                command = SINGLE_KEY.get(name)
                if command is None or command.on_keys is None or len(key) > KEY_BYTES_MAX:
                    return place
                if command.is_write and not may_write:
                    return place
                command.check(arguments)
                turn = Turn(copy, session.dialect, now_ms=now_ms)
                answer = command.on_keys(turn, arguments)
                answers_bytes += len(answer)
                if turn.writes:
                    sequence = copy.commit(turn.outcome())
                elif copy.is_undone(turn.seen):
                    waits.append((len(answers), copy.acks, turn.seen, True))
            if sequence:
                written[copy] = sequence
                if not copy.acks.is_immediate:
                    waits.append((len(answers), copy.acks, sequence, False))
            answers.append(answer)
    except RaftwoodError:
        # `dispatch.execute` words the answer; nothing was done here.
        return place
    return end


def _data_of(copy: PartitionCopy, key: bytes, now_ms: int) -> bytes | None:
    if len(key) > KEY_BYTES_MAX:
        raise RedisError(KEY_TOO_LARGE)
    value = copy.store.get(key, now_ms=now_ms)
    return None if value is None else value.data


def _values(
    copy: PartitionCopy, slot: int, arguments: list[bytes], now_ms: int, null: bytes
) -> bytes:
    """Returns the values of keys in one slot if all are short and in memory; else nothing."""
    keys = arguments[1:]
    if len(keys) < 2 or not are_in_slot(keys, slot):
        return b""
    parts = [b"*%d\r\n" % len(keys)]
    try:
        for found in itemgetter(*keys)(copy.recent):
            data = found.data
            if data is None or 0 < found.expires_ms <= now_ms:
                parts.append(null)
            else:
                parts += (_HEADS[len(data)], data, _BREAK)
    except LookupError:
        return b""
    return b"".join(parts)


def _put_all(copy: PartitionCopy, slot: int, arguments: list[bytes]) -> int:
    """Writes all pairs; returns the record's sequence, or 0 if the request is not plain."""
    keys, values = arguments[1::2], arguments[2::2]
    size = sum(map(len, arguments)) + WRITE_BYTES * len(keys)
    if (
        len(keys) != len(values)
        or size > OUTCOME_BYTES_MAX
        or max(map(len, keys)) > KEY_BYTES_MAX
        or not are_in_slot(keys, slot)
    ):
        return 0
    return copy.write(dict(zip(keys, map(KeyWrite, keys, values), strict=True)), size)


def _next_number(copy: PartitionCopy, key: bytes) -> int:
    """Returns a counter plus one, if it is in memory, above 0 and far from its end; else 0."""
    found = copy.recent.get(key)
    if found is None or found.expires_ms or not found.data:
        return 0
    data = found.data
    if len(data) > _COUNTER_BYTES_MAX or data[0] == _ZERO or not data.isdigit():
        return 0
    return int(data) + 1


UNSENT_BYTES_MAX: Final = ANSWERS_BYTES_MAX
"""Bytes of answers gathered, held or not taken by the client; above it no more are made."""
HELD_MAX: Final = 4_096
"""Number of held answers: few enough that the last one does not wait much longer for its ack."""
RECEIVE_BYTES: Final = 64 << 10
"""Bytes received at a time; the rest waits in the socket."""
DEEP: Final = 64
"""A client that sends more requests at once queues behind those that send fewer."""
LOGIN_S_MAX: Final = 10.0
REQUEST_S_MAX: Final = 60.0
"""From the first byte of a request to its last; between two requests a client may be silent."""

_AFTER_LOGIN: Final = RequestLimits()


class DataConnection(asyncio.BufferedProtocol):
    """The protocol's callbacks; `session` knows the client."""

    def __init__(self, server: "DataServer", number: int) -> None:
        self.server = server
        self.session = KvSession(server, number)
        self.held = HeldAnswers(self._released)
        self._turns = server.turns
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._requests = Requests()
        self._is_logged_in = False
        """Since then, requests may be as large as a user's."""
        self._has_unread = False
        """Bytes that came with the login may hold requests."""
        self._waiting: list[list[bytes]] = []
        """Requests for a later turn: behind one that waits, or with too many answers unsent."""
        self._task: asyncio.Task[None] | None = None
        """The command that waits."""
        self._is_congested = False
        self._is_reading = True
        self._is_amid_request = False
        self._login_timer: asyncio.TimerHandle | None = None

    # The asyncio protocol.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        # uvloop's transports have the methods of asyncio.Transport but not its type.
        self._transport = transport = cast("asyncio.Transport", transport)
        transport.set_write_buffer_limits(UNSENT_BYTES_MAX // 2, UNSENT_BYTES_MAX // 4)
        peer = transport.get_extra_info("peername") or ("", 0)
        self.session.address = f"{peer[0]}:{peer[1]}"
        self._login_timer = self._loop.call_later(LOGIN_S_MAX, self._login_took_too_long)
        if not self.server.admit(self, address_of(transport)):
            self.refuse("max number of clients reached")

    def connection_lost(self, _: Exception | None) -> None:
        self._transport = None
        self._turns.forget(self._work)
        self._waiting.clear()
        self.held.clear()
        if self._login_timer is not None:
            self._login_timer.cancel()
        if self._task is not None:
            self._task.cancel()
        self.session.unwatch()
        self.server.forget(self)

    def get_buffer(self, _size_hint: int) -> memoryview:
        # One buffer for all connections: received bytes are copied out at once.
        return self.server.receive_buffer

    def buffer_updated(self, count: int) -> None:
        data = bytes(self.server.receive_buffer[:count])
        is_deep = count == RECEIVE_BYTES or bool(self._waiting)
        if self._is_logged_in:
            requests = self._requests
            self._waiting += requests.feed(data)
            if self._is_amid_request or not requests.is_between:
                self._look_for_rest()
            if not self._waiting and requests.failure is None:
                return
        else:
            self._requests.add(data)
        if is_deep or len(self._waiting) > DEEP or not self._may_work:
            # The client has sent more than a turn's work: read no more before its turn.
            self._work_later()
        elif self._turns.begin():
            self._work()
        elif self._is_logged_in:
            self._turns.queue(self._work)
        else:
            self._work_later()

    def _look_for_rest(self) -> None:
        """Sets a deadline for the rest of a request that has begun."""
        if not self._requests.is_between:
            if self._waiting or not self._is_amid_request:
                self._is_amid_request = True
                self.server.expect_rest(self, self._loop.time() + REQUEST_S_MAX)
        elif self._is_amid_request:
            self._is_amid_request = False
            self.server.got_rest(self)

    def pause_writing(self) -> None:
        self._is_congested = True

    def resume_writing(self) -> None:
        self._is_congested = False
        self._work_later()

    # Executing.

    @property
    def _may_work(self) -> bool:
        held = self.held
        return (
            self._task is None
            and not self._is_congested
            and held.size <= UNSENT_BYTES_MAX
            and held.count <= HELD_MAX
            and not held.is_paced
            and not self.session.is_closing
            and self._transport is not None
        )

    def _work_later(self) -> None:
        if self._may_work:
            self._turns.queue(self._work)
        self._pause(is_full=True)

    def _work(self) -> None:
        """Works for a slice of a turn, until the slice is over or a request waits."""
        may_work = self._may_work
        while may_work and (self._waiting or self._read_on()):
            goes_on = self._run()
            may_work = self._may_work
            if not goes_on:
                break
        if self._requests.failure is not None:
            self._fail()
            may_work = self._may_work
        if self._waiting and may_work:
            self._turns.queue(self._work)
        self._pause(is_full=bool(self._waiting) or not may_work)

    def _read_on(self) -> bool:
        """Looks for requests in the bytes that came before the login: one at a time, because later
        ones may be larger.
        """
        if not self._is_logged_in:
            self._waiting = self._requests.take_one()
        elif self._has_unread:
            self._has_unread = False
            self._waiting = self._requests.feed(b"")
            self._look_for_rest()
        return bool(self._waiting)

    def _run(self) -> bool:
        """Executes requests until the slice is over or one has to wait, and sends the answers.
        Returns whether the slice continues.
        """
        session, server, turns = self.session, self.server, self._turns
        session.begin_turn()
        server.latency.is_asked = True
        requests, answers = self._waiting, list[bytes]()
        waits: list[Wait] = []
        done = end = size = 0
        while done < len(requests) and not session.is_closing and size <= UNSENT_BYTES_MAX:
            if done == end:
                end += turns.take(len(requests) - done)
                if done == end:
                    break
            if requests[done][0] in PLAIN:
                count = len(answers)
                done = answer_plain(session, requests, done, end, answers, waits)
                if len(answers) > count:
                    size += sum(map(len, answers[count:]))
                if done == end:
                    continue
            answer = execute(session, requests[done])
            done += 1
            if type(answer) is not bytes:
                self._wait_for(cast("Coroutine[Any, Any, bytes]", answer))
                break
            turns.look_again(unused=end - done)
            end = done
            if session.waits:
                waits += [(len(answers), *wait) for wait in session.waits]
                session.waits.clear()
            answers.append(answer)
            size += len(answer)
        server.command_count += done
        self._waiting = requests[done:]
        self._send(answers, waits)
        if session.is_closing:
            self._end()
        return done > 0 and not self._waiting

    def _wait_for(self, answer: Coroutine[Any, Any, bytes]) -> None:
        self._task = self.server.run(self._answer_later(answer))

    async def _answer_later(self, answer: Coroutine[Any, Any, bytes]) -> None:
        encoded = await answer
        session = self.session
        self._task = None
        if self._transport is None:
            return
        if session.user is not None and not self._is_logged_in:
            self._requests.limits = _AFTER_LOGIN
            self.server.admission.authenticated(self)
            self._is_logged_in = self._has_unread = True
            if self._login_timer is not None:
                self._login_timer.cancel()
        waits = [(0, *wait) for wait in session.waits]
        session.waits.clear()
        self._send([encoded], waits)
        # Go on with the requests behind the one that waited.
        self._work_later()

    def _pause(self, *, is_full: bool) -> None:
        transport = self._transport
        if transport is None or self._is_reading is not is_full or transport.is_closing():
            return
        self._is_reading = not is_full
        if is_full:
            transport.pause_reading()
        else:
            transport.resume_reading()

    # Sending.

    def _send(self, answers: list[bytes], waits: list[Wait]) -> None:
        if not answers:
            return
        if not self.held and (not waits or are_done(waits)):
            assert self._transport is not None
            self._transport.write(answers[0] if len(answers) == 1 else b"".join(answers))
            return
        deadline = self._loop.time() + ACK_S_MAX
        self.held.hold(HeldAnswer(answers, waits, deadline))
        self.server.expect(self, deadline)

    def _released(self) -> None:
        self.release(self._loop.time())

    def release(self, now: float) -> None:
        """Sends the answers that are done, and those that have waited too long."""
        if not self.held:
            return
        began = self.held.deadline - ACK_S_MAX
        answers = self.held.take(now)
        if self._transport is None or not answers:
            return
        self.server.latency.waited(now - began)
        self._transport.write(b"".join(answers))
        if not self._is_reading:
            self._work_later()
        self._close_when_sent()

    # The end.

    def _fail(self) -> None:
        """Reports the client's protocol error behind all other answers, and closes."""
        if self._task is None and not self._waiting and not self.session.is_closing:
            self._send([error(f"ERR {self._requests.failure}")], [])
            self._end()

    def _end(self) -> None:
        self.session.is_closing = True
        self._waiting.clear()
        self._pause(is_full=True)
        self._close_when_sent()

    def _close_when_sent(self) -> None:
        if self._transport is not None and self.session.is_closing and not self.held:
            self._transport.close()

    def _login_took_too_long(self) -> None:
        if self._transport is not None and self.session.user is None:
            self._transport.abort()

    @property
    def is_reading(self) -> bool:
        """Whether the server reads from the client; else the client cannot finish its request."""
        return self._is_reading

    def make_room(self) -> None:
        """Closes the connection in favour of a new one."""
        self.refuse(DISPLACED)

    def refuse(self, reason: str) -> None:
        """Refuses the client with a reason, and closes."""
        if self._task is not None:
            self._task.cancel()
        if self._transport is not None:
            self._transport.write(error(f"ERR {reason}"))
            self._transport.close()

    def cut(self) -> None:
        """Closes at once."""
        if self._transport is not None:
            self._transport.abort()
