"""One fault after the other, some of them at the same time."""

import asyncio
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
    victim = str(master) if master is not None and source.random() < 0.6 else source.choice(names)
    others = [name for name in names if name != victim]
    network = world.simulation.network
    lasting_s = source.uniform(0.05, 3.0)
    match source.randrange(9):
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
            network.partition([victim], others)
            await asyncio.sleep(lasting_s)
            network.heal()
        case 6:
            network.partition([victim], [source.choice(others)])
            world.meta.cut_off[victim] = None
            await asyncio.sleep(lasting_s)
            world.meta.cut_off.pop(victim, None)
            network.heal()
        case 7:
            world.meta.begin_handover(partition)
            await asyncio.sleep(lasting_s)
            if world.meta.known(partition).state is PartitionState.STUCK:
                world.meta.bump(partition)
        case _:
            world.meta.bump(partition)
            network.reset(victim, source.choice(others))
