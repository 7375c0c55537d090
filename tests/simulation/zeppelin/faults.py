"""What happens to nodes, links and the topology; several of it at the same time."""

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

from raftwood.zeppelin.model import PartitionState

if TYPE_CHECKING:
    from tests.simulation.zeppelin.world import World


async def inject(world: "World") -> None:
    """Do something bad to somebody for a while; often to a master."""
    source = world.random
    await asyncio.sleep(source.uniform(0.05, 1.0))
    names = [*world.machines]
    partition = source.choice(world.meta.partitions)
    master = world.meta.known(partition).master
    victim = str(master) if master is not None and source.random() < 0.5 else source.choice(names)
    others = [name for name in names if name != victim]
    lasting_s = source.uniform(0.05, 3.0)
    match source.randrange(10):
        case 0 | 1:
            world.kill(victim)
            await asyncio.sleep(lasting_s)
            world.start(victim)
        case 2:
            world.kill(victim)
            world.start(victim)
        case 3:
            world.machines[victim].pause()
            await asyncio.sleep(lasting_s)
            world.machines[victim].resume()
        case 4:
            world.meta.cut_off[victim] = None
            await asyncio.sleep(lasting_s)
            world.meta.cut_off.pop(victim, None)
        case 5:
            cut = others if source.random() < 0.5 else others[:1]
            world.simulation.network.partition([victim], cut)
            await asyncio.sleep(lasting_s)
            _mend(world, victim, cut)
        case 6 | 7:
            # It goes on writing for as long as its lease is, and nobody else gets that.
            world.simulation.network.partition([victim], others)
            await asyncio.sleep(source.uniform(0, 0.3))
            world.meta.cut_off[victim] = None
            await asyncio.sleep(lasting_s)
            if source.random() < 0.3:
                world.kill(victim)
            world.meta.cut_off.pop(victim, None)
            _mend(world, victim, others)
            world.start(victim)
        case 8:
            world.meta.begin_handover(partition)
            await asyncio.sleep(lasting_s)
            if world.meta.known(partition).state is PartitionState.STUCK:
                world.meta.bump(partition)
        case _:
            world.meta.bump(partition)
            world.simulation.network.reset(victim, source.choice(others))


def _mend(world: "World", victim: str, others: Sequence[str]) -> None:
    for other in others:
        world.simulation.network.mend(source=victim, target=other)
        world.simulation.network.mend(source=other, target=victim)
