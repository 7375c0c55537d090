"""Swarm testing (Groce et al., ISSTA 2012): each seed picks the kinds and rates of faults.

A run with every fault on at once hides what a run with a few would find. `SwarmProfile.choose`
draws a profile from a seed; `FaultInjector.run` applies it until a given time and then makes the
world whole again, so that convergence can be polled.
"""

import asyncio
import heapq
import random
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

import msgspec

from raftwood.base import files
from raftwood.testing.disk import SLOW_DISK, DiskProfile
from raftwood.testing.network import NetworkProfile

if TYPE_CHECKING:
    from raftwood.testing.runner import Machine, Simulation

FAULTS = (
    "kill",
    "power_loss",
    "power_loss_of_all",
    "partition",
    "one_way_cut",
    "pause",
    "wall_jump",
    "slow_disk",
    "disk_full",
    "reset",
    "stall",
)
DISK_ERRORS = ("sync_error", "write_error")
"""Faults that end a process by design; picked only if requested."""
_SUPERVISE_S = 1.0


class SwarmProfile(msgspec.Struct, frozen=True, kw_only=True):
    """The faults of a run; mean seconds between two of a kind."""

    seed: int | str
    every_s: dict[str, float] = {}
    drift: float = 0.0
    network: NetworkProfile = NetworkProfile()
    disk: DiskProfile = DiskProfile()

    @classmethod
    def choose(
        cls, seed: int | str, *, allowed: Sequence[str] = FAULTS, calm: float = 1.0
    ) -> "SwarmProfile":
        """Draws a profile; a higher `calm` makes all faults rarer."""
        source = random.Random(f"swarm {seed}")
        every_s = {
            fault: calm * source.choice((2.0, 5.0, 15.0))
            for fault in allowed
            if source.random() < 0.45
        }
        slow, fast = (0.001, 0.02), (0.0002, 0.002)
        network = NetworkProfile(
            delay_s=slow if source.random() < 0.3 else fast,
            spike_probability=source.choice((0.0, 0.0, 0.005, 0.02)),
            split_probability=source.choice((0.0, 0.05, 0.5)),
            short_read_probability=source.choice((0.0, 0.05, 0.5)),
        )
        disk = DiskProfile(stall_probability=source.choice((0.0, 0.0, 0.01)))
        drift = source.choice((0.0, 0.0, 0.01, 0.05))
        return cls(seed=seed, every_s=every_s, drift=drift, network=network, disk=disk)


class FaultInjector:
    """Breaks the machines of a simulation and repairs them.

    Machines need their own program to be started again; one that ended by itself is restarted
    within a second, as a supervisor would.
    """

    def __init__(
        self,
        simulation: "Simulation",
        profile: SwarmProfile,
        *,
        machines: Sequence["Machine"] | None = None,
        others: Sequence[str] = ("outside",),
        down_max: int | None = None,
    ) -> None:
        """`others` are nodes, such as clients', that may be cut off but are never taken down."""
        self.counts: dict[str, int] = {}
        self._simulation = simulation
        self._profile = profile
        self._machines = list(machines or simulation.machines.values())
        self._names = [*(machine.name for machine in self._machines), *others]
        self._down_max = len(self._machines) if down_max is None else down_max
        self._random = random.Random(f"faults {profile.seed}")
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._sequence = 0
        self._repairs: dict[str, Callable[[], None]] = {}
        """The present faults by name, each with the function that repairs it."""

    async def run(self, *, until: float) -> None:
        """Injects faults until the virtual time `until`, then repairs everything."""
        profile = self._profile
        network = self._simulation.network
        calm = network.profile
        network.profile = profile.network
        self._repairs["network"] = lambda: setattr(network, "profile", calm)
        for machine in self._machines:
            machine.disk.profile = profile.disk
            machine.clock.set_rate(1.0 + self._random.uniform(-profile.drift, profile.drift))
        for fault in self._profile.every_s:
            self._plan(fault)
        self._later(_SUPERVISE_S, self._supervise)
        while self._due and self._due[0][0] < until:
            moment, _, action = heapq.heappop(self._due)
            await asyncio.sleep(max(0.0, moment - self._simulation.now))
            action()
        await asyncio.sleep(max(0.0, until - self._simulation.now))
        self.mend()

    def mend(self) -> None:
        """Heals, resumes and restarts everything; clocks keep their drift."""
        for repair in list(self._repairs.values()):
            repair()
        self._repairs.clear()
        for machine in self._machines:
            machine.disk.call_off_failures()
        self._simulation.network.heal()
        self._supervise_once()

    def _later(self, seconds: float, action: Callable[[], None]) -> None:
        self._sequence += 1
        heapq.heappush(self._due, (self._simulation.now + seconds, self._sequence, action))

    def _plan(self, fault: str) -> None:
        seconds = self._random.expovariate(1.0 / self._profile.every_s[fault])

        def inject() -> None:
            self.counts[fault] = self.counts.get(fault, 0) + 1
            getattr(self, f"_{fault}")()
            self._plan(fault)

        self._later(seconds, inject)

    def _break(self, name: str, seconds: tuple[float, float], repair: Callable[[], None]) -> None:
        self._repairs[name] = repair

        def mend_one() -> None:
            if self._repairs.get(name) is repair:
                del self._repairs[name]
                repair()

        self._later(self._random.uniform(*seconds), mend_one)

    def _supervise(self) -> None:
        self._supervise_once()
        self._later(_SUPERVISE_S, self._supervise)

    def _supervise_once(self) -> None:
        """Restarts processes that ended by themselves, as an operator's supervisor does."""
        for machine in self._machines:
            if not machine.running and f"down {machine.name}" not in self._repairs:
                machine.start()

    def _pick(self) -> "Machine":
        return self._random.choice(self._machines)

    def _pair(self) -> tuple[str, str]:
        one, other = self._random.sample(self._names, 2)
        return one, other

    # The faults, by name.

    def _take_down(self, machine: "Machine", stop: Callable[[], None]) -> None:
        down = sum(name.startswith("down ") for name in self._repairs)
        if not machine.running or down >= self._down_max:
            return
        stop()

        def restart() -> None:
            if not machine.running:
                machine.start()

        self._break(f"down {machine.name}", (0.1, 4.0), restart)

    def _kill(self) -> None:
        machine = self._pick()
        self._take_down(machine, machine.kill)

    def _power_loss(self) -> None:
        machine = self._pick()
        self._take_down(machine, machine.power_off)

    def _power_loss_of_all(self) -> None:
        if self._down_max >= len(self._machines):
            for machine in self._machines:
                self._take_down(machine, machine.power_off)

    def _partition(self) -> None:
        names = self._random.sample(self._names, len(self._names))
        middle = self._random.randint(1, len(names) - 1)
        left, right = names[:middle], names[middle:]
        network = self._simulation.network
        network.partition(left, right)

        def mend() -> None:
            for one in left:
                for other in right:
                    network.mend(source=one, target=other)
                    network.mend(source=other, target=one)

        self._break("partition", (0.5, 8.0), mend)

    def _one_way_cut(self) -> None:
        source, target = self._pair()
        network = self._simulation.network
        network.cut(source=source, target=target)
        mend: Callable[[], None] = lambda: network.mend(source=source, target=target)  # noqa: E731
        self._break(f"cut {source} {target}", (0.5, 8.0), mend)

    def _pause(self) -> None:
        machine = self._pick()
        machine.pause()
        self._break(f"pause {machine.name}", (0.1, 5.0), machine.resume)

    def _wall_jump(self) -> None:
        self._pick().clock.jump_wall(self._random.uniform(-3600.0, 3600.0))

    def _slow_disk(self) -> None:
        disk = self._pick().disk
        disk.profile = SLOW_DISK

        def mend() -> None:
            disk.profile = self._profile.disk

        self._break(f"slow disk {disk.name}", (0.5, 5.0), mend)

    def _disk_full(self) -> None:
        disk = self._pick().disk
        disk.capacity_bytes = disk.file_system.used_bytes()

        def mend() -> None:
            disk.capacity_bytes = None

        self._break(f"disk full {disk.name}", (0.5, 5.0), mend)

    def _sync_error(self) -> None:
        self._pick().disk.fail_next(files.DataSync)

    def _write_error(self) -> None:
        self._pick().disk.fail_next(files.Write)

    def _reset(self) -> None:
        self._simulation.network.reset(*self._pair())

    def _stall(self) -> None:
        source, target = self._pair()
        seconds = self._random.uniform(0.1, 3.0)
        self._simulation.network.stall(source=source, target=target, seconds=seconds)
