"""Web servers ship their lines to a ring of receivers, of which one is killed in the middle and
comes back a little later.
"""

import time
from collections.abc import Callable
from contextlib import ExitStack
from types import TracebackType
from typing import Final, Self

import msgspec

from raftwood.app.demo.receivers import OTHERS, Receivers, Target
from raftwood.app.demo.shipping_figures import Killed, Shipped, added_up, went_on
from raftwood.app.demo.shipping_plan import MadeLines, ShippingPlan
from raftwood.app.demo.story import StoryListener
from raftwood.app.demo.web_files import WebFiles, file_names, share
from raftwood.app.demo.web_orders import GoOn, Ship, WebServerPlan
from raftwood.app.demo.web_servers import WebServers
from raftwood.app.demo.web_truth import WebTruth
from raftwood.app.parts import Parts
from raftwood.base.errors import DeadlineExceeded

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
        target: Target,
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
                access_key=loghub.access_key_id,
                access_secret=loghub.access_key_secret,
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
