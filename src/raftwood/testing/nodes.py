"""Nodes, which survive a crash, and their processes, which do not.

A `SimulatedNode` is a machine: a name, a clock and a disk. A `Process` is one run of a program on
it; every callback and task belongs to the process that is in `PROCESS` when it is scheduled. A
process that was killed stays in memory until the simulation ends, because dropping a suspended
coroutine would run its `finally` blocks, which no real crash does.
"""

import contextvars
import gc
import random
from collections import deque
from collections.abc import Callable, Coroutine
from types import AsyncGeneratorType
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from raftwood.testing.errors import ProcessEnded

if TYPE_CHECKING:
    import asyncio

    from raftwood.testing.loop import SimulatedLoop

PROCESS: contextvars.ContextVar["Process | None"] = contextvars.ContextVar("PROCESS", default=None)
"""The process whose code is running; None in the scenario itself."""

_ONE_NANOSECOND = 1e-9
_WALL_START_NS = 1_700_000_000_000_000_000
_TASKS_BEFORE_PRUNING = 256
_CLOSE_ATTEMPTS_MAX = 100


class Resource(Protocol):
    """A kernel object of a process: a socket, a listener, a session with a disk."""

    def process_ended(self, *, power_lost: bool) -> None: ...


class NodeClock:
    """One machine's clocks: monotonic time with an offset and a drift, and a wall that may jump."""

    def __init__(self, loop: "SimulatedLoop") -> None:
        self._loop = loop
        self._base_now = 0.0
        self._base_local = 0.0
        self._wall_offset_ns = _WALL_START_NS
        self.rate = 1.0

    def local(self, now: float) -> float:
        return self._base_local + (now - self._base_now) * self.rate

    def to_global(self, local: float) -> float:
        """Returns when a local time comes; never early, or a wait until a deadline would spin."""
        when = self._base_now + (local - self._base_local) / self.rate
        return when if local == when else when + _ONE_NANOSECOND

    def set_rate(self, rate: float) -> None:
        """Makes time pass `rate` times as fast from now on; timers keep their moment."""
        now = self._loop.now
        self._base_local, self._base_now = self.local(now), now
        self.rate = rate

    def advance(self, seconds: float) -> None:
        """Moves monotonic time forward, as on a machine that was suspended."""
        if seconds < 0:
            raise ValueError("monotonic time never goes back")
        self._base_local += seconds

    def jump_wall(self, seconds: float) -> None:
        """Steps the wall clock, forward or back."""
        self._wall_offset_ns += int(seconds * 1e9)

    def wall_ns(self) -> int:
        return self._wall_offset_ns + self.monotonic_ns()

    def monotonic_ns(self) -> int:
        return int(self.local(self._loop.now) * 1e9)


class Process:
    """One run of a program on a node."""

    def __init__(self, node: "SimulatedNode", number: int) -> None:
        self.node = node
        self.number = number
        self.alive = True
        self.paused = False
        self.queue: deque[asyncio.Handle] = deque()
        self.due_while_paused: list[asyncio.Handle] = []
        self.scheduled = False
        self.tasks: list[asyncio.Task[Any]] = []
        self.resources: dict[Resource, None] = {}
        self.end_reason = ""
        self.main: asyncio.Task[Any] | None = None
        self._prune_at = _TASKS_BEFORE_PRUNING

    def __repr__(self) -> str:
        return f"<process {self.number} on {self.node.name}>"

    def can_run(self) -> bool:
        return self.alive and not self.paused

    def add_task(self, task: "asyncio.Task[Any]") -> None:
        self.tasks.append(task)
        if len(self.tasks) >= self._prune_at:
            self.tasks = [each for each in self.tasks if not each.done()]
            self._prune_at = max(_TASKS_BEFORE_PRUNING, 2 * len(self.tasks))

    def describe_tasks(self) -> list[str]:
        """Returns a line for each task, with the place where it waits."""
        lines = []
        for task in self.tasks:
            if not task.done():
                stack = task.get_stack(limit=1)
                where = f"{stack[0].f_code.co_qualname}:{stack[0].f_lineno}" if stack else "?"
                lines.append(f"  {self.node.name}: {task.get_name()} waits in {where}")
        return lines

    def end(self, reason: str, *, power_lost: bool = False) -> None:
        """Stops at once: none of its code runs any more, not even clean-up."""
        if not self.alive:
            return
        self.alive = False
        self.end_reason = reason
        loop = self.node.loop
        loop.trace("end", self.node.name, reason, power_lost)
        loop.graveyard.append(self)
        resources, self.resources = self.resources, {}
        for resource in resources:
            resource.process_ended(power_lost=power_lost)
        if self.node.process is self:
            self.node.process = None

    def end_itself(self, reason: str) -> NoReturn:
        """Implements `Environment.end_process`."""
        self.end(reason)
        raise ProcessEnded(reason)

    def let_go(self) -> None:
        """Drops all its objects, once its code can no longer reach anything."""
        tasks, self.tasks = self.tasks, []
        for task in tasks:
            _dispose(task)
        self.queue.clear()
        self.due_while_paused.clear()


def _dispose(task: "asyncio.Task[Any]") -> None:
    task._log_destroy_pending = False  # type: ignore[attr-defined]
    if task.done():
        task._log_traceback = False
        return
    chain = []
    awaited: Any = task.get_coro()
    while awaited is not None:
        if isinstance(awaited, Coroutine):
            chain.append(awaited)
        awaited = _awaited_by(awaited)
    # The innermost first: one that awaits in its clean-up would make the outer ones drop it half
    # closed, and the interpreter would complain when it is collected.
    for each in reversed(chain):
        _close(each)


def _awaited_by(awaiting: Any) -> Any:
    """Returns what a coroutine, or the next step of an asynchronous generator, waits for."""
    if hasattr(awaiting, "cr_await"):
        return awaiting.cr_await
    generators = [
        each for each in gc.get_referents(awaiting) if isinstance(each, AsyncGeneratorType)
    ]
    return generators[0].ag_await if generators else None


def _close(coroutine: Coroutine[Any, Any, Any]) -> None:
    for _ in range(_CLOSE_ATTEMPTS_MAX):
        try:
            coroutine.close()
        except BaseException:  # noqa: S112  errors of a dead program no longer matter
            continue
        return


class SimulatedNode:
    """A machine of the simulation, known to others by its name."""

    def __init__(self, loop: "SimulatedLoop", name: str, number: int) -> None:
        self.loop = loop
        self.name = name
        self.number = number
        self.clock = NodeClock(loop)
        self.process: Process | None = None
        self.powered = True
        self.leaks: list[str] = []
        self.on_power_loss: list[Callable[[random.Random], None]] = []
        """What a power failure does to the parts of the machine, such as its disks."""

    def __repr__(self) -> str:
        return f"<node {self.name}>"

    @property
    def running(self) -> bool:
        return self.process is not None

    def start(self, main: Callable[[], Coroutine[Any, Any, Any]]) -> Process:
        """Starts a program; the process ends when `main` returns or raises."""
        if self.process is not None:
            raise RuntimeError(f"node {self.name} runs already: kill it first")
        loop = self.loop
        self.powered = True
        process = self.process = loop.new_process(self)
        loop.trace("start", self.name)
        context = contextvars.copy_context()
        context.run(PROCESS.set, process)
        coroutine = context.run(main)
        process.main = loop.create_task(coroutine, context=context)
        process.main.add_done_callback(self._main_returned, context=context)
        return process

    def kill(self) -> None:
        """Like SIGKILL: the kernel resets the connections, the page cache stays."""
        if self.process is not None:
            self.process.end("killed")

    def power_off(self) -> None:
        """Like a pulled plug: peers get no notice, and unsynced data are at risk."""
        process = self.process
        if process is not None:
            process.end("power lost", power_lost=True)
        self.powered = False
        for lose in self.on_power_loss:
            lose(self.loop.random_of("power loss"))

    def pause(self) -> None:
        """Like SIGSTOP: none of the process's code runs; its kernel buffers still fill."""
        if self.process is not None and not self.process.paused:
            self.process.paused = True
            self.loop.trace("pause", self.name)

    def resume(self) -> None:
        process = self.process
        if process is not None and process.paused:
            process.paused = False
            # Like asyncio: after a wait, socket events come before the timers that are due.
            process.queue.extend(process.due_while_paused)
            process.due_while_paused.clear()
            self.loop.trace("resume", self.name)
            self.loop.make_runnable(process)

    def _main_returned(self, task: "asyncio.Task[Any]") -> None:
        process = PROCESS.get()
        assert process is not None
        for leftover in process.tasks:
            if not leftover.done():
                self.leaks.append(f"{self.name}: {leftover!r} still ran when its process returned")
        self.leaks.extend(
            f"{self.name}: {resource!r} still open when its process returned"
            for resource in process.resources
            if getattr(resource, "reports_leak", False)
        )
        if not task.cancelled() and task.exception() is not None:
            self.loop.report(process, f"{self.name}: main failed", task.exception())
        process.end("returned")
