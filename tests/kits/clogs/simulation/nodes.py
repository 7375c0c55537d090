"""The programs of the machines: a receiver, and an application that ships lines and keeps book."""

import asyncio
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from raftwood.base.environment import Environment
from raftwood.base.errors import Overloaded, RaftwoodError
from raftwood.base.metrics import Metrics
from raftwood.clogs.client.shipper import AsyncShipper
from raftwood.clogs.receiver import Receiver, ReceiverLimits
from raftwood.net import Identity, Secret
from tests.kits.clogs.ring import KEY, SECRET, settings_of
from tests.kits.clogs.simulation.notebook import Life
from tests.kits.clogs.simulation.weather import PORT, RingSource, WeatheredSink
from tests.kits.models import Violation

if TYPE_CHECKING:
    from tests.kits.clogs.simulation.world import World

SPOOL = "/data/spool"
_OPEN_AGAIN_S = 0.3
_SYNC_S_MAX = 2.0


async def receive(world: "World", name: str, environment: Environment) -> None:
    sink = WeatheredSink(world.storage, world.weather, environment.random)
    receiver = Receiver(
        environment,
        sink,
        secret_of=_secret_of,
        limits=ReceiverLimits(batches_max=world.plan.batches_max),
        metrics=Metrics(receiver=name),
    )
    await receiver.listen(name, PORT)
    await asyncio.get_running_loop().create_future()


def _secret_of(identity: Identity) -> Secret | None:
    return Secret(SECRET) if identity.node_id == KEY else None


class Application:
    """One life of one."""

    def __init__(
        self, world: "World", name: str, environment: Environment, shipper: AsyncShipper
    ) -> None:
        self.world = world
        self.random = environment.random
        self.shipper = shipper
        self.files = [f"{name}/{number}.log" for number in range(world.plan.files)]
        self.life = Life(name, sum(life.shipper == name for life in world.lives))
        self.life.counters = shipper.counters
        world.lives.append(self.life)
        self.is_flushed = False

    @property
    def has_spool(self) -> bool:
        """Whether it ships what earlier lives left; also one that is to have none."""
        return not self.world.plan.has_spool or self.shipper._slots is not None

    async def run(self) -> None:
        world, plan = self.world, self.world.plan
        try:
            while not world.is_over:
                await self._give()
                self.life.check_counters(self.shipper.held_lines)
                if plan.has_spool and self.random.random() < plan.sync:
                    await self._sync()
                await asyncio.sleep(self.random.expovariate(1 / plan.pause_s))
            await self.shipper.flush()
            self.life.check_counters(0)
            self.is_flushed = True
            await world.closing.wait()
            await self.shipper.close()
            self.life.check_counters(0)
        except Violation as violation:
            world.violations.append(violation)

    async def _give(self) -> None:
        file = self.random.choice(self.files)
        lines = self.life.lines(file, self.random.randint(1, 5), self.world.plan.line_bytes)
        try:
            delivery = self.shipper.send(file, lines)
        except Overloaded:
            return  # an application that waits would do nothing else meanwhile
        self.life.give(lines, delivery)

    async def _sync(self) -> None:
        lines: Sequence[bytes] = list(self.life.is_promised)
        try:
            async with asyncio.timeout(_SYNC_S_MAX):
                await self.shipper.sync()
        except TimeoutError:
            return
        self.life.promise(lines)


async def ship(world: "World", name: str, environment: Environment) -> None:
    plan = world.plan
    changes: dict[str, Any] = {
        "memory_bytes_max": plan.memory_bytes_max,
        "when_full": plan.when_full,
        "batch_lines_max": plan.batch_lines_max,
        "in_flight_max": plan.in_flight_max,
        "compression": "none",
    }
    if plan.has_spool:
        changes |= {
            "spool_folder": SPOOL,
            "spool": plan.spool,
            "spool_bytes_max": plan.spool_bytes_max,
        }
    start = partial(AsyncShipper.start, environment, settings_of(**changes), world.access)
    while True:
        source = RingSource(world.rings)
        try:
            shipper = await start(source)
            break
        except RaftwoodError:  # the disk is full
            await source.close()
            await asyncio.sleep(_OPEN_AGAIN_S)
    application = world.applications[name] = Application(world, name, environment, shipper)
    await application.run()
