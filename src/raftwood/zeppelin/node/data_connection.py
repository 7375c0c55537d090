"""One client's connection: requests in, answers out, in order, in one write for each turn.

Most requests are answered at once. A write's answer is held until the write is done; those behind
it are executed, and held too. A command that itself has to wait (for a login, for many values, for
the end of a hand-over) stops the requests behind it. Nothing is read from a client that does not
take its answers.
"""

import asyncio
from collections.abc import Coroutine
from typing import TYPE_CHECKING, Any, Final, cast

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
LOGIN_S_MAX: Final = 10.0
REQUEST_S_MAX: Final = 60.0
"""From the first byte of a request to its last; between two requests a client may be silent."""

_AFTER_LOGIN: Final = RequestLimits()


class DataConnection(asyncio.Protocol):
    """The protocol's callbacks; `session` knows the client."""

    def __init__(self, server: "DataServer", number: int) -> None:
        self.server = server
        self.session = Session(server, number)
        self.held = HeldAnswers(self._released)
        self._loop = asyncio.get_running_loop()
        self._transport: asyncio.Transport | None = None
        self._requests = Requests()
        self._waiting: list[list[bytes]] = []
        """Requests behind one that waits, or that came when too many answers were unsent."""
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
        if not self.server.admit(self):
            transport.write(error("ERR max number of clients reached"))
            transport.close()

    def connection_lost(self, _: Exception | None) -> None:
        self._transport = None
        self._waiting.clear()
        self.held.clear()
        if self._login_timer is not None:
            self._login_timer.cancel()
        if self._task is not None:
            self._task.cancel()
        self.session.unwatch()
        self.server.forget(self)

    def data_received(self, data: bytes) -> None:
        if self._requests.limits is not _AFTER_LOGIN:
            self._requests.add(data)
            self._read_on()
            return
        requests = self._requests.feed(data)
        if self._waiting or self._task is not None or self._is_full:
            self._waiting += requests
            self._pause(is_full=True)
        elif requests:
            self._run(requests)
        if not self._requests.is_between:
            if requests or not self._is_amid_request:
                self._is_amid_request = True
                self.server.expect_rest(self, self._loop.time() + REQUEST_S_MAX)
        elif self._is_amid_request:
            self._is_amid_request = False
            self.server.got_rest(self)
        if self._requests.failure is not None:
            self._fail()

    def _read_on(self) -> None:
        """One request after the other until the client has logged in: then it may send more."""
        while self._task is None and not self._waiting and not self.session.is_closing:
            is_after = self._requests.limits is _AFTER_LOGIN
            requests = self._requests.feed(b"") if is_after else self._requests.take_one()
            if not requests:
                break
            self._run(requests)
        if self._task is not None:
            self._pause(is_full=True)
        elif self._requests.failure is not None:
            self._fail()

    def pause_writing(self) -> None:
        self._is_congested = True

    def resume_writing(self) -> None:
        self._is_congested = False
        self._go_on()

    # Executing.

    @property
    def _is_full(self) -> bool:
        return self._is_congested or self.held.size > UNSENT_BYTES_MAX

    def _run(self, requests: list[list[bytes]]) -> None:
        """Execute requests until one has to wait, and send what was answered."""
        session = self.session
        session.begin_turn()
        answers: list[bytes] = []
        waits: list[Wait] = []
        server = self.server
        server.command_count += len(requests)
        server.latency.is_asked = True
        done = size = 0
        while done < len(requests) and not session.is_closing and size <= UNSENT_BYTES_MAX:
            if requests[done][0] in PLAIN:
                count = len(answers)
                done = answer_plain(session, requests, done, answers, waits)
                if done == len(requests):
                    break
                if len(answers) > count:
                    size += sum(map(len, answers[count:]))
                    continue
            answer = execute(session, requests[done])
            done += 1
            if type(answer) is not bytes:
                self._wait_for(cast("Coroutine[Any, Any, bytes]", answer))
                break
            if session.waits:
                waits += [(len(answers), *wait) for wait in session.waits]
                session.waits.clear()
            answers.append(answer)
            size += len(answer)
        self._send(answers, waits)
        if session.is_closing:
            self._end()
        elif done < len(requests):
            self._waiting = requests[done:]
            self._pause(is_full=True)
            if self._task is None and not self._is_full:
                # What came in one piece was too much for one turn.
                self._loop.call_soon(self._go_on)

    def _wait_for(self, answer: Coroutine[Any, Any, bytes]) -> None:
        self._task = self.server.run(self._answer_later(answer))

    async def _answer_later(self, answer: Coroutine[Any, Any, bytes]) -> None:
        encoded = await answer
        session = self.session
        self._task = None
        if self._transport is None:
            return
        if session.user is not None and self._requests.limits is not _AFTER_LOGIN:
            self._requests.limits = _AFTER_LOGIN
            if self._login_timer is not None:
                self._login_timer.cancel()
        waits = [(0, *wait) for wait in session.waits]
        session.waits.clear()
        self._send([encoded], waits)
        self._go_on()

    def _go_on(self) -> None:
        """With the requests behind the one that waited."""
        if self._task is not None or self._is_full or self._transport is None:
            return
        waiting, self._waiting = self._waiting, []
        if waiting:
            self._run(waiting)
        else:
            self._read_on()
        if self._requests.failure is not None:
            self._fail()
        if not self._waiting and self._task is None:
            self._pause(is_full=False)

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
        if self._waiting and not self._is_full:
            self._go_on()
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

    def cut(self) -> None:
        """End it at once."""
        if self._transport is not None:
            self._transport.abort()
