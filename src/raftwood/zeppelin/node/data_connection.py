"""One client's connection: requests in, answers out, in order, in one write for each turn.

Most requests are answered at once. A write's answer is held until the write is done; those behind
it are executed, and held too. A command that itself has to wait (for a login, for many values, for
the end of a hand-over) stops the requests behind it. Nothing is read from a client that does not
take its answers, or that has sent more than one turn's work (see `net.turns`).
"""

import asyncio
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, Final, cast

from raftwood.net.admission import DISPLACED, address_of
from raftwood.zeppelin.commands.execution import execute
from raftwood.zeppelin.commands.session import Session
from raftwood.zeppelin.node.held_answers import ACK_S_MAX, Held, HeldAnswers, Wait, are_done
from raftwood.zeppelin.node.plain_requests import ANSWERS_BYTES_MAX, PLAIN, answer_plain
from raftwood.zeppelin.resp.answers import error
from raftwood.zeppelin.resp.requests import RequestLimits, Requests

if TYPE_CHECKING:
    from raftwood.zeppelin.node.data_server import DataServer

UNSENT_BYTES_MAX: Final = ANSWERS_BYTES_MAX
"""Answers that are gathered, held, or not taken by the client: above it no more are made."""
HELD_MAX: Final = 4_096
"""Answers that are held: few enough that the last one waits for its ack not much longer."""
RECEIVE_BYTES: Final = 64 << 10
"""At a time; what else a client offers waits in its socket."""
DEEP: Final = 64
"""A client that sends more requests at once waits for its turn behind those that send fewer."""
LOGIN_S_MAX: Final = 10.0
REQUEST_S_MAX: Final = 60.0
"""From the first byte of a request to its last; between two requests a client may be silent."""

_AFTER_LOGIN: Final = RequestLimits()


class DataConnection(asyncio.BufferedProtocol):
    """The protocol's callbacks; `session` knows the client."""

    def __init__(self, server: "DataServer", number: int) -> None:
        self.server = server
        self.session = Session(server, number)
        self.held = HeldAnswers(self._released)
        self._turns = server.turns
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._requests = Requests()
        self._is_logged_in = False
        """Requests may be as large as a user's."""
        self._has_unread = False
        """What came with the login may hold requests."""
        self._waiting: list[list[bytes]] = []
        """Requests for a later turn, behind one that waits, or with too many answers unsent."""
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
        # One for all connections: what is received is copied out at once.
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
            # It offers more than was read, or much in few bytes: nothing is read before its turn.
            self._work_later()
        elif self._turns.begin():
            self._work()
        elif self._is_logged_in:
            self._turns.queue(self._work)
        else:
            self._work_later()

    def _look_for_rest(self) -> None:
        """A request that has begun has to be whole in time."""
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
        """A slice of a turn: execute what waits, until the slice is over or a request waits."""
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
        """Look for requests in what came before the client had logged in: one after the other, as
        it may send more afterwards.
        """
        if not self._is_logged_in:
            self._waiting = self._requests.take_one()
        elif self._has_unread:
            self._has_unread = False
            self._waiting = self._requests.feed(b"")
            self._look_for_rest()
        return bool(self._waiting)

    def _run(self) -> bool:
        """Execute requests until the slice is over or one has to wait, and send what was answered;
        whether the slice goes on.
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
        # With the requests behind the one that waited.
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
        self.held.hold(Held(answers, waits, deadline))
        self.server.expect(self, deadline)

    def _released(self) -> None:
        self.release(self._loop.time())

    def release(self, now: float) -> None:
        """Send what is done, and what has waited for too long."""
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
        """The client broke the protocol: say how behind all that was answered, and end."""
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
        """Whether the client is listened to: while it is not, it cannot finish its request."""
        return self._is_reading

    def make_room(self) -> None:
        """A newcomer displaces it."""
        self.refuse(DISPLACED)

    def refuse(self, reason: str) -> None:
        """Tell a client that it may not stay, and end."""
        if self._task is not None:
            self._task.cancel()
        if self._transport is not None:
            self._transport.write(error(f"ERR {reason}"))
            self._transport.close()

    def cut(self) -> None:
        """End it at once."""
        if self._transport is not None:
            self._transport.abort()
