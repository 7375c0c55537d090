"""An asyncio event loop whose time is virtual and whose every choice comes from a seed.

Callbacks of one process run in the order asyncio promises; which process runs next is a seeded
choice. When nothing can run, time moves to the next timer. The loop keeps a hash of what happened:
equal seeds give equal hashes, or the code under test takes something from outside.

Code of a node sees that node's clock in `loop.time()`, `call_at` and `call_later`.
"""

import asyncio
import contextvars
import gc
import heapq
import random
import socket
import struct
import threading
import traceback
from collections.abc import Callable, Coroutine, Generator
from concurrent.futures import Executor
from typing import Any, TypeVar, TypeVarTuple

import xxhash

from raftwood.testing.errors import Deadlock, Overrun, ProcessEnded, refuse
from raftwood.testing.network import Network, NetworkProfile
from raftwood.testing.nodes import PROCESS, Process, SimulatedNode
from raftwood.testing.sockets import ProtocolFactory, create_connection, create_server

Arguments = TypeVarTuple("Arguments")
Result = TypeVar("Result")

_PACK = struct.Struct("<dII").pack
_CANCELLED_BEFORE_PRUNING = 200
_TURNS_PER_CALL = 1000
_LISTED_IN_ERRORS_MAX = 20
_FRAMES_IN_ERRORS = 8


class SimulatedLoop(asyncio.BaseEventLoop):
    """Virtual time, a queue per process, and a trace hash."""

    _closed: bool
    _stopping: bool
    _thread_id: int | None

    def __init__(
        self,
        seed: int | str = 0,
        *,
        network: NetworkProfile | None = None,
        virtual_seconds_max: float = 36_000.0,
        steps_max: int = 100_000_000,
        steps_at_one_instant_max: int = 1_000_000,
    ) -> None:
        super().__init__()
        self.seed = seed
        self.now = 0.0
        self.steps = 0
        self.virtual_seconds_max = virtual_seconds_max
        self.steps_max = steps_max
        self.steps_at_one_instant_max = steps_at_one_instant_max
        self.graveyard: list[Process] = []
        self.errors: list[str] = []
        self._randoms: dict[str, random.Random] = {}
        self._choose = self.random_of("schedule").random
        self._runnable: list[Process] = []
        # (global time, sequence, process, handle); a process of None marks a call by the kernel.
        self._timers: list[tuple[float, int, Process | None, Any]] = []
        self._timer_sequence = 0
        self._cancelled_timers = 0
        self._instant_steps = 0
        self.collect_every_steps = 0
        self._collected_at = 0
        self._hash = xxhash.xxh3_64()
        self.trace_lines: list[str] | None = None
        """The events in the hash, kept on request: they show where two runs differ."""
        self._processes = 0
        self.nodes: dict[str, SimulatedNode] = {}
        self.outside = self.new_process(self.add_node("outside"))
        self.outside.node.process = self.outside
        self.network = Network(self, network or NetworkProfile())

    # Trace.

    def random_of(self, purpose: str) -> random.Random:
        """Returns a random stream for one purpose, apart from all others.

        With one stream for all, a fault that is drawn once more would change every later choice,
        and a seed that shows a bug would show another run after any change of the code.
        """
        found = self._randoms.get(purpose)
        if found is None:
            found = self._randoms[purpose] = random.Random(f"{self.seed}/{purpose}")
        return found

    def trace(self, *what: object) -> None:
        """Adds an event to the hash. Its text must be alike in every run: no address of an object.

        Two runs of a seed are compared by their hashes, so code that takes a time or a number from
        outside is found. Test:
        test_simulated_loop::test_code_that_takes_something_from_outside_is_found
        """
        self._hash.update(f"{self.now!r}{what!r}".encode())
        if self.trace_lines is not None:
            self.trace_lines.append(f"{self.now!r} {what!r}")

    def trace_data(self, receiver: int, data: bytes | bytearray | memoryview) -> None:
        if self.trace_lines is not None:
            self.trace_lines.append(f"{self.now!r} process {receiver} receives {bytes(data)!r}")
        self._hash.update(_PACK(self.now, receiver, len(data)))
        self._hash.update(data)

    @property
    def trace_hash(self) -> str:
        return self._hash.hexdigest()

    # Nodes and processes.

    def add_node(self, name: str) -> SimulatedNode:
        if name in self.nodes:
            raise ValueError(f"there is a node {name!r} already")
        node = self.nodes[name] = SimulatedNode(self, name, len(self.nodes))
        return node

    def new_process(self, node: SimulatedNode) -> Process:
        self._processes += 1
        return Process(node, self._processes - 1)

    def current_process(self) -> Process:
        return PROCESS.get() or self.outside

    def make_runnable(self, process: Process) -> None:
        if process.queue and not process.scheduled and process.alive and not process.paused:
            process.scheduled = True
            self._runnable.append(process)

    # Time.

    def time(self) -> float:
        process = PROCESS.get()
        return self.now if process is None else process.node.clock.local(self.now)

    def call_at(
        self,
        when: float,
        callback: Callable[[*Arguments], object],
        *args: *Arguments,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        if self._closed:
            raise RuntimeError("Event loop is closed")
        caller = PROCESS.get()
        moment = when if caller is None else caller.node.clock.to_global(when)
        handle = asyncio.TimerHandle(when, callback, args, self, context)
        handle._scheduled = True  # type: ignore[attr-defined]
        process = caller if context is None else context.get(PROCESS)
        self._timer_sequence = sequence = self._timer_sequence + 1
        heapq.heappush(self._timers, (moment, sequence, process or self.outside, handle))
        return handle

    def call_later(
        self,
        delay: float,
        callback: Callable[[*Arguments], object],
        *args: *Arguments,
        context: contextvars.Context | None = None,
    ) -> asyncio.TimerHandle:
        return self.call_at(self.time() + delay, callback, *args, context=context)

    def call_soon(
        self,
        callback: Callable[[*Arguments], object],
        *args: *Arguments,
        context: contextvars.Context | None = None,
    ) -> asyncio.Handle:
        if self._closed:
            raise RuntimeError("Event loop is closed")
        handle = asyncio.Handle(callback, args, self, context)
        process = (PROCESS.get() if context is None else context.get(PROCESS)) or self.outside
        # A dead process's queue runs nothing. It keeps the handles alive, because to drop them
        # would run clean-up code, which a crash does not. Test: test_simulated_loop::
        # test_a_crash_runs_no_finally_block
        process.queue.append(handle)
        if not process.scheduled and process.alive and not process.paused:
            process.scheduled = True
            self._runnable.append(process)
        return handle

    def call_soon_threadsafe(
        self,
        callback: Callable[[*Arguments], object],
        *args: *Arguments,
        context: contextvars.Context | None = None,
    ) -> asyncio.Handle:
        if self._thread_id is not None and self._thread_id != threading.get_ident():
            raise NotImplementedError("call_soon_threadsafe: simulated code has no other threads")
        return self.call_soon(callback, *args, context=context)

    def kernel_at(self, moment: float, call: Callable[[], None]) -> None:
        """Lets the simulated world act at a moment; the process may be paused or dead by then."""
        self._timer_sequence = sequence = self._timer_sequence + 1
        heapq.heappush(self._timers, (moment, sequence, None, call))

    def kernel_later(self, delay: float, call: Callable[[], None]) -> None:
        self.kernel_at(self.now + delay, call)

    def _timer_handle_cancelled(self, handle: asyncio.TimerHandle) -> None:
        if not handle._scheduled:  # type: ignore[attr-defined]
            return
        self._cancelled_timers += 1
        if self._cancelled_timers > max(_CANCELLED_BEFORE_PRUNING, len(self._timers) // 2):
            self._timers = [
                timer for timer in self._timers if timer[2] is None or not timer[3]._cancelled
            ]
            heapq.heapify(self._timers)
            self._cancelled_timers = 0

    # Running.

    def _run_once(self) -> None:
        # Many turns per call: what the base class does between calls is not needed between turns.
        for _ in range(_TURNS_PER_CALL):
            if not self._runnable:
                if self._stopping:
                    return
                self._move_time()
            self._run_turn()
            if self._stopping:
                return

    def _run_turn(self) -> None:
        """Runs the ready callbacks of one process, drawn by the seed.

        Within a process they run in order, as asyncio promises. Between processes any order is
        possible in reality, and the seed tries many.
        """
        runnable = self._runnable
        index = int(self._choose() * len(runnable)) if len(runnable) > 1 else 0
        process = runnable[index]
        last = runnable.pop()
        if last is not process:
            runnable[index] = last
        process.scheduled = False
        if not process.can_run():
            return
        queue = process.queue
        count = len(queue)
        self.steps += count
        self._instant_steps += count
        self._hash.update(_PACK(self.now, process.number, count))
        if self.trace_lines is not None:
            self.trace_lines.append(f"{self.now!r} {process!r} runs {count}")
        if self.steps > self.steps_max or self._instant_steps > self.steps_at_one_instant_max:
            self._overrun()
        if self.collect_every_steps and self.steps - self._collected_at > self.collect_every_steps:
            self._collected_at = self.steps
            gc.collect()
        # Like asyncio: whatever these callbacks schedule runs in the next turn.
        for _ in range(count):
            handle = queue.popleft()
            if not handle._cancelled:
                handle._run()
                if not process.alive or process.paused:
                    return
        self.make_runnable(process)

    def _move_time(self) -> None:
        """Advances the clock to the next timer, and makes all timers due then ready.

        With no timer left nothing can ever happen again: that is a deadlock, and it names the tasks
        that wait. Test: test_simulated_loop::
        test_waiting_for_what_never_comes_is_a_deadlock_that_names_the_task
        """
        runnable = self._runnable
        while self._timers:
            moment, _, process, thing = self._timers[0]
            if process is not None and thing._cancelled:
                heapq.heappop(self._timers)
                self._cancelled_timers -= 1
                continue
            if moment > self.now:
                if runnable:
                    return
                if moment > self.virtual_seconds_max:
                    raise Overrun(
                        f"seed {self.seed}: {self.virtual_seconds_max} virtual seconds are over"
                        f" and the scenario has not ended\n{self.describe_tasks()}"
                    )
                self.now = moment
                self._instant_steps = 0
            heapq.heappop(self._timers)
            if process is None:
                thing()
            else:
                thing._scheduled = False
                if process.paused:
                    process.due_while_paused.append(thing)
                else:
                    process.queue.append(thing)
                    self.make_runnable(process)
        if not self._runnable:
            raise Deadlock(
                f"seed {self.seed}: nothing can run and no timer is set"
                f" at {self.now:.6f} s\n{self.describe_tasks()}"
            )

    def _overrun(self) -> None:
        if self.steps > self.steps_max:
            raise Overrun(f"seed {self.seed}: {self.steps_max} steps are over")
        raise Overrun(
            f"seed {self.seed}: {self._instant_steps} steps and time still stands at"
            f" {self.now:.6f} s: something spins without waiting\n{self.describe_tasks()}"
        )

    def describe_tasks(self) -> str:
        """Returns a line for each task of each living process, with the place where it waits."""
        lines: list[str] = []
        processes = [node.process for node in self.nodes.values() if node.process is not None]
        for process in processes:
            lines += process.describe_tasks()
        return "\n".join(lines[:_LISTED_IN_ERRORS_MAX])

    # Tasks and failures.

    def create_task(
        self,
        coro: Generator[Any, None, Result] | Coroutine[Any, Any, Result],
        *,
        name: object = None,
        context: contextvars.Context | None = None,
        **unsupported: object,
    ) -> asyncio.Task[Result]:
        refuse("create_task", **unsupported)
        task: asyncio.Task[Result] = super().create_task(coro, name=name, context=context)
        process = (PROCESS.get() if context is None else context.get(PROCESS)) or self.outside
        process.add_task(task)
        return task

    def call_exception_handler(self, context: dict[str, Any]) -> None:
        exception = context.get("exception")
        if isinstance(exception, ProcessEnded):
            return
        self.report(self.current_process(), str(context.get("message")), exception)

    def report(self, process: Process, message: str, exception: BaseException | None) -> None:
        """Keeps an unhandled failure; the runner raises it at the end."""
        if process.alive and not isinstance(exception, ProcessEnded):
            frames = (
                traceback.format_exception(exception, limit=-_FRAMES_IN_ERRORS) if exception else ()
            )
            self.errors.append(f"{process.node.name}: {message}: {exception!r}\n{''.join(frames)}")

    # The network.

    async def create_server(
        self,
        protocol_factory: ProtocolFactory,
        host: Any = None,
        port: int | None = None,
        **options: Any,
    ) -> Any:
        return await create_server(self, protocol_factory, host, port, **options)

    async def create_connection(
        self,
        protocol_factory: ProtocolFactory,
        host: str | None = None,
        port: int | None = None,
        **options: Any,
    ) -> Any:
        return await create_connection(self, protocol_factory, host, port, **options)

    async def getaddrinfo(
        self,
        host: bytes | str | None,
        port: bytes | str | int | None,
        *,
        family: int = 0,
        type: int = 0,  # noqa: A002
        proto: int = 0,
        flags: int = 0,
    ) -> Any:
        refuse("getaddrinfo", flags=flags)
        node = self.network.resolve(str(host) if host else None, self.current_process().node)
        kind = (family or socket.AF_INET, type or socket.SOCK_STREAM, proto or socket.IPPROTO_TCP)
        return [(*kind, "", (node.name, port))]

    async def create_datagram_endpoint(self, *_args: object, **_options: object) -> Any:
        raise NotImplementedError("create_datagram_endpoint: datagrams are not simulated")

    # Forbidden in simulated code.

    def run_in_executor(
        self,
        executor: Executor | None,
        func: Callable[[*Arguments], Result],
        *args: *Arguments,
    ) -> asyncio.Future[Result]:
        raise NotImplementedError(
            f"run_in_executor({func!r}): threads are not simulated; use Environment.files"
        )

    def _write_to_self(self) -> None:
        """Does nothing: no selector sleeps."""

    # The end.

    def drop_everything(self) -> None:
        """Drops all that is scheduled outside of nodes, so that the loop can be reused."""
        self.outside.let_go()
        self._timers.clear()
        self._runnable.clear()
        self.outside.scheduled = False

    def close(self) -> None:
        """Ends all processes and drops their coroutines, with the world already gone.

        A suspended coroutine can only be dropped by unwinding it. By now the loop is closed and
        every process dead, so that what a `finally` tries to do reaches nothing.
        """
        if self._closed:
            return
        processes = [node.process for node in self.nodes.values() if node.process is not None]
        for process in processes:
            process.end("simulation ended", power_lost=True)
        super().close()
        for process in self.graveyard:
            process.let_go()
        self.graveyard.clear()
        self._timers.clear()
        self._runnable.clear()
