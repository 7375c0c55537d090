"""Web servers ship their lines to a ring of receivers, of which one is killed and comes back.

`ShippingPlan` says which lines they make, `WebServers` are their processes, and `Shipped` is what
was counted and measured meanwhile.
"""

import os
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import ExitStack
from types import TracebackType
from typing import Final, Self

import msgspec

from raftwood.base.errors import DeadlineExceeded
from raftwood.clogs.client.status import Counters, ServerCounters
from raftwood.server.parts import Parts
from raftwood_demos.pipeline_check import FigureCheck, WebTruth
from raftwood_demos.processes import DemoProcess
from raftwood_demos.receivers import OTHERS, Receivers, ReceiverTarget
from raftwood_demos.story import StoryListener
from raftwood_demos.web_logs import WebFiles, file_name, file_names, server_name, share, web_logs
from raftwood_demos.web_server import Given, GoOn, Order, Ship, WebServerPlan, WebServerReport


class ShippingPlan(msgspec.Struct, frozen=True, kw_only=True):
    """Who ships how much."""

    servers: int = 3
    lines: int
    """In all."""
    lines_per_minute: int
    """Of all servers, by the times of the lines."""
    seed: int
    seconds: float = 5.0
    """Shipping lasts so long at the least where a receiver is killed meanwhile."""

    def server_lines(self, server: int) -> Iterator[str]:
        return web_logs(
            share(self.lines, server, self.servers),
            seed=self.seed,
            server=server,
            lines_per_minute=self.server_lines_per_minute,
        )

    @property
    def server_lines_per_minute(self) -> int:
        return self.lines_per_minute // self.servers


class MadeLines:
    """All lines of the plan, made once more by a thread, and what matters of them.

    Use it as a context manager; `begin` when there is time for it.
    """

    def __init__(self, plan: ShippingPlan) -> None:
        self._plan = plan
        self._truth, self._files = WebTruth(), WebFiles()
        self._is_over = False
        self._thread: threading.Thread | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over = True
        if self._thread is not None:
            self._thread.join()

    def begin(self) -> threading.Thread:
        if self._thread is None:
            self._thread = threading.Thread(target=self._make, name="lines once more")
            self._thread.start()
        return self._thread

    def known(self) -> tuple[WebTruth, WebFiles]:
        self.begin().join()
        return self._truth, self._files

    def _make(self) -> None:
        for number in range(1, self._plan.servers + 1):
            for line in self._plan.server_lines(number):
                if self._is_over:
                    return
                self._truth.add(line)
                self._files.add(file_name(number, line), line)


class Killed(msgspec.Struct, frozen=True, kw_only=True):
    """What came of killing a receiver."""

    receiver: str
    files: int
    """That it had."""
    isolated_ms: float
    """Until all web servers had isolated it."""
    elsewhere: int
    """Of its files: lines made after it was killed were acked before it was back."""
    elsewhere_ms: float
    """Until then, for the last of its files."""
    others_ms: float
    """The same for the files of the other receivers."""
    away_s: float
    """Until it served again."""
    taken_back_ms: float
    """From then on until all web servers used it again."""
    acked_again: int
    """Lines by it after that."""


class Shipped(msgspec.Struct, frozen=True, kw_only=True):
    """What the web servers tell at their end."""

    killed: Killed
    files: dict[str, int]
    """How many each receiver has while all are well."""
    receivers: dict[str, ServerCounters]
    acked: int
    dropped: int
    refused: int

    @property
    def again(self) -> int:
        """Lines that were sent another time."""
        return sum(each.retried for each in self.receivers.values())


def added_up(counted: Iterable[Counters]) -> dict[str, ServerCounters]:
    """By receiver, of several shippers."""
    total: dict[str, ServerCounters] = {}
    for counters in counted:
        for name, each in counters.servers.items():
            known = total.setdefault(name, ServerCounters())
            for field in each.__struct_fields__:
                setattr(known, field, getattr(known, field) + getattr(each, field))
    return dict(sorted(total.items()))


def went_on(
    given: Sequence[Given], files: Collection[str], *, after_ns: int, until_ns: int
) -> tuple[int, float]:
    """Of how many of the files something that was given after a moment was acked until another one;
    and how long that took, for the last of these.
    """
    first: dict[str, int] = {}
    for each in given:
        if each.file in files and each.given_ns > after_ns and each.acked_ns < until_ns:
            first[each.file] = min(each.acked_ns, first.get(each.file, each.acked_ns))
    longest_ns = max((acked_ns - after_ns for acked_ns in first.values()), default=0)
    return len(first), longest_ns / 1e6


def shipping_checks(
    shipped: Shipped, *, lines: int, made: WebFiles, found: WebFiles
) -> list[FigureCheck]:
    """`found` are the files as the stream has them, by its topics."""
    killed = shipped.killed
    return [
        FigureCheck("lines made → acked to the web servers", lines, shipped.acked),
        FigureCheck("lines dropped or refused", 0, shipped.dropped + shipped.refused),
        FigureCheck("files made → files in the stream", len(made), len(found)),
        FigureCheck("files → every line once, in order", len(made), len(made.same_as(found))),
        FigureCheck("files of the killed receiver → went on", killed.files, killed.elsewhere),
    ]


class WebServer:
    """One process; `report` is the last that it told."""

    def __init__(self, folder: str, number: int) -> None:
        self.name = server_name(number)
        self.report = WebServerReport(version=0, isolated=(), counters=Counters())
        self.given: tuple[Given, ...] = ()
        """Of the last order that it has carried out."""
        self._process = DemoProcess(
            folder, self.name, (), module="raftwood_demos.web_server", has_output=True
        )
        self._listening = threading.Thread(target=self._listen, name=f"reports of {self.name}")
        self._listening.start()

    def _listen(self) -> None:
        for line in self._process.output:
            report = msgspec.json.decode(line, type=WebServerReport)
            if report.given:
                self.given = report.given
            self.report = report

    def tell(self, said: WebServerPlan | Order) -> None:
        """Its plan first, then what it is to do."""
        try:
            self._process.input.write(msgspec.json.encode(said) + b"\n")
            self._process.input.flush()
        except BrokenPipeError:
            self.check()
            raise

    def check(self) -> None:
        """One that ended by itself is an error."""
        self._process.check()

    def close(self, *, is_orderly: bool) -> int:
        """Its exit status."""
        if not is_orderly:
            self._process.kill()
        try:
            self._process.input.close()
        except BrokenPipeError:
            self._process.kill()
        self._process.wait()
        self._listening.join()
        return self._process.close()


class WebServers:
    """All of them; use it as a context manager."""

    def __init__(self, folder: str, numbers: Sequence[int]) -> None:
        self._folder = folder
        self._numbers = numbers
        self.servers: list[WebServer] = []

    def __enter__(self) -> Self:
        os.makedirs(self._folder, exist_ok=True)
        try:
            for number in self._numbers:
                self.servers.append(WebServer(self._folder, number))
        except BaseException:
            self.close(is_orderly=False)
            raise
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        self.close(is_orderly=kind is None)

    def close(self, *, is_orderly: bool) -> None:
        while self.servers:
            self.servers.pop().close(is_orderly=is_orderly)

    def reports(self) -> list[WebServerReport]:
        """The last of each."""
        for server in self.servers:
            server.check()
        return [server.report for server in self.servers]

    def all_say(self, holds: Callable[[WebServerReport], bool]) -> bool:
        return all(holds(report) for report in self.reports())

    def acked(self) -> int:
        return sum(report.counters.acked for report in self.reports())


RING: Final = "web"
_KILLED_AT_SHARE: Final = 0.2
"""Of each server's lines: so many are acked by then."""
_HELD_BACK_SHARE: Final = 0.25
"""Of each server's lines: made when the receiver that was killed is back."""
_HASTE_S: Final = 0.5
_WAIT_S_MAX: Final = 90.0
_LOOK_S: Final = 0.02


class _Fault(msgspec.Struct, kw_only=True):
    receiver: str
    files: list[str]
    killed_ns: int
    isolated_ns: int = 0
    back_ns: int = 0
    taken_back_ns: int = 0
    acked_before: int = 0


class Shipping:
    """Use it as a context manager."""

    def __init__(
        self,
        folder: str,
        parts: Parts,
        plan: ShippingPlan,
        target: ReceiverTarget,
        listener: StoryListener,
    ) -> None:
        self._folder = f"{folder}/shipping"
        self._parts = parts
        self._plan = plan
        self._target = target
        self._listener = listener
        self._stack = ExitStack()
        self._numbers = range(1, plan.servers + 1)
        self._names = [name for number in self._numbers for name in file_names(number)]
        self._orders = 0
        self._ordered = 0
        """Lines."""
        self._made = MadeLines(plan)
        self._receivers: Receivers
        self._servers: WebServers

    def __enter__(self) -> Self:
        self._listener.on_progress("starting receivers", 0, 0)
        with ExitStack() as stack:
            stack.enter_context(self._made)
            # They begin while the receivers do, and are told later where these are.
            self._servers = stack.enter_context(WebServers(self._folder, self._numbers))
            self._receivers = stack.enter_context(
                Receivers(self._folder, self._parts, self._target, ring=RING)
            )
            for server, plan in zip(self._servers.servers, self._server_plans(), strict=True):
                server.tell(plan)
            self._wait(lambda: self._servers.all_say(lambda each: each.version > 0), "are ready")
            self._stack = stack.pop_all()
        names = ", ".join(self._receivers.addresses)
        self._listener.on_step(
            f"{self._plan.servers} web servers run, and know the ring of receivers: {names}"
        )
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        # Before the receivers, to which they are connected.
        self._servers.close(is_orderly=kind is None)
        self._stack.__exit__(kind, error, trace)

    def ship(self, lines: int) -> float:
        """The next lines, as fast as it goes; how many a second."""
        began = time.perf_counter()
        self._order(lines, seconds=_HASTE_S, held_back_share=0.0)
        return self._finish(lines, began)

    def ship_and_kill(self, lines: int) -> tuple[float, Killed]:
        """The next lines, while the receiver with the most files is killed and comes back."""
        began = time.perf_counter()
        self._order(lines, seconds=self._plan.seconds, held_back_share=_HELD_BACK_SHARE)
        part = lines // self._plan.servers * _KILLED_AT_SHARE
        self._wait(
            lambda: self._servers.all_say(lambda each: each.counters.acked >= part),
            "have their first lines acked",
        )
        fault = self._kill()
        self._bring_back(fault)
        per_s = self._finish(lines, began)
        return per_s, self._judged(fault)

    def known(self) -> tuple[WebTruth, WebFiles]:
        """What is known of all lines of the plan."""
        return self._made.known()

    def shipped(self, killed: Killed) -> Shipped:
        """All figures up to now."""
        counted = [report.counters for report in self._servers.reports()]
        return Shipped(
            killed=killed,
            files={name: len(files) for name, files in self._placed().items()},
            receivers=added_up(counted),
            acked=sum(each.acked for each in counted),
            dropped=sum(each.dropped for each in counted),
            refused=sum(each.refused for each in counted),
        )

    def _server_plans(self) -> list[WebServerPlan]:
        plan, loghub = self._plan, self._parts.loghub
        return [
            WebServerPlan(
                number=number,
                seed=plan.seed,
                lines=share(plan.lines, number, plan.servers),
                lines_per_minute=plan.server_lines_per_minute,
                ring=RING,
                receivers=tuple(self._receivers.addresses.values()),
                access_key=loghub.access_key,
                access_secret=loghub.access_secret,
            )
            for number in self._numbers
        ]

    def _placed(self) -> dict[str, list[str]]:
        return self._receivers.files_of(self._names)

    # Orders

    def _order(self, lines: int, *, seconds: float, held_back_share: float) -> None:
        self._orders += 1
        for number, server in zip(self._numbers, self._servers.servers, strict=True):
            # A server's shares of all orders together are its share of all lines.
            count = share(self._ordered + lines, number, self._plan.servers) - share(
                self._ordered, number, self._plan.servers
            )
            held_back = int(count * held_back_share)
            server.tell(Ship(lines=count, seconds=seconds, held_back=held_back))
        self._ordered += lines

    def _finish(self, lines: int, began: float) -> float:
        self._wait(
            lambda: self._servers.all_say(lambda each: each.shipped == self._orders),
            "have all lines acked",
        )
        per_s = lines / (time.perf_counter() - began)
        self._made.begin()  # it takes a core, which shipping needed up to now
        self._listener.on_step(
            f"{lines:,} lines shipped to {self._target.project}/{self._target.logstore}, "
            f"{per_s:,.0f} lines/s"
        )
        return per_s

    def _wait(self, holds: Callable[[], bool], what: str) -> None:
        deadline = time.monotonic() + _WAIT_S_MAX
        while not holds():
            if time.monotonic() > deadline:
                raise DeadlineExceeded(
                    f"the web servers do not all say within {_WAIT_S_MAX:g} s that they {what}: "
                    f"see the logs in {self._folder}"
                )
            if self._ordered:
                self._listener.on_progress("shipping lines", self._servers.acked(), self._ordered)
            time.sleep(_LOOK_S)

    # The fault

    def _kill(self) -> _Fault:
        placed = self._placed()
        victim = max(OTHERS, key=lambda name: len(placed[name]))
        files = placed[victim]
        fault = _Fault(receiver=victim, files=files, killed_ns=self._receivers.kill(victim))
        self._wait(
            lambda: self._servers.all_say(lambda each: victim in each.isolated),
            f"have isolated {victim}",
        )
        fault.isolated_ns = time.monotonic_ns()
        self._wait(lambda: self._have_gone_on(fault), f"ship the files of {victim} elsewhere")
        spent_ms = (fault.isolated_ns - fault.killed_ns) / 1e6
        self._listener.on_step(
            f"{victim}, which had {len(files)} of {len(self._names)} files, is killed with -9: "
            f"after {spent_ms:,.0f} ms all web servers use the others"
        )
        return fault

    def _have_gone_on(self, fault: _Fault) -> bool:
        reached: dict[str, int] = {}
        for report in self._servers.reports():
            reached |= report.reached
        return all(reached.get(name, 0) > fault.killed_ns for name in fault.files)

    def _bring_back(self, fault: _Fault) -> None:
        victim = fault.receiver
        fault.acked_before = self._acked_by(victim)
        self._receivers.start(victim)
        self._receivers.wait_ready(victim)
        fault.back_ns = time.monotonic_ns()
        self._wait(
            lambda: self._servers.all_say(lambda each: victim not in each.isolated),
            f"use {victim} again",
        )
        fault.taken_back_ns = time.monotonic_ns()
        self._listener.on_step(
            f"{victim} serves again after {(fault.back_ns - fault.killed_ns) / 1e9:.1f} s, and "
            f"{(fault.taken_back_ns - fault.back_ns) / 1e6:,.0f} ms later all web servers use it"
        )
        for server in self._servers.servers:
            server.tell(GoOn())

    def _acked_by(self, receiver: str) -> int:
        return sum(
            report.counters.servers[receiver].acked
            for report in self._servers.reports()
            if receiver in report.counters.servers
        )

    def _judged(self, fault: _Fault) -> Killed:
        given = [each for server in self._servers.servers for each in server.given]
        others = [name for name in self._names if name not in fault.files]
        times = {"after_ns": fault.killed_ns, "until_ns": fault.back_ns}
        elsewhere, elsewhere_ms = went_on(given, fault.files, **times)
        _, others_ms = went_on(given, others, **times)
        return Killed(
            receiver=fault.receiver,
            files=len(fault.files),
            isolated_ms=(fault.isolated_ns - fault.killed_ns) / 1e6,
            elsewhere=elsewhere,
            elsewhere_ms=elsewhere_ms,
            others_ms=others_ms,
            away_s=(fault.back_ns - fault.killed_ns) / 1e9,
            taken_back_ms=(fault.taken_back_ns - fault.back_ns) / 1e6,
            acked_again=self._acked_by(fault.receiver) - fault.acked_before,
        )
