"""What happens to nodes, links and the topology; several of it at the same time."""

import asyncio
from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tests.kits.zeppelin.simulation.world import World


async def inject(world: "World") -> None:
    """Do something bad to somebody for a while; often to a master."""
    source, network = world.random, world.simulation.network
    await asyncio.sleep(source.uniform(0.05, 1.0) * world.pace)
    names = [*world.nodes]
    partition = source.choice(world.meta.partitions())
    master = world.meta.machine_of(partition)
    victim = master if master is not None and source.random() < 0.5 else source.choice(names)
    others = [name for name in names if name != victim]
    lasting_s = source.uniform(0.05, 3.0)
    node = world.nodes[victim]
    match source.randrange(11):
        case 0 | 1:
            node.break_down(loses_power=source.random() < 0.7)
            await asyncio.sleep(lasting_s)
            node.start()
        case 2:
            node.break_down(loses_power=True)
            node.start()
        case 3:
            node.machine.pause()
            await asyncio.sleep(lasting_s)
            node.machine.resume()
        case 4:
            world.meta.cut_off[victim] = None
            await asyncio.sleep(lasting_s)
            world.meta.cut_off.pop(victim, None)
        case 5:
            cut = others if source.random() < 0.5 else others[:1]
            network.partition([victim], cut)
            await asyncio.sleep(lasting_s)
            _mend(world, victim, cut)
        case 6 | 7:
            # It goes on writing for as long as its lease is, and nobody else gets that.
            network.partition([victim], others)
            await asyncio.sleep(source.uniform(0, 0.3))
            world.meta.cut_off[victim] = None
            await asyncio.sleep(lasting_s)
            if source.random() < 0.3:
                node.break_down(loses_power=True)
            world.meta.cut_off.pop(victim, None)
            _mend(world, victim, others)
            node.start()
        case 8:
            await world.prefer(partition, victim)
        case 9:
            # What a leader heard is forgotten: it waits, and judges then.
            await world.meta.change_leader()
        case _:
            await world.make_again()
            network.reset(victim, source.choice(others))


def _mend(world: "World", victim: str, others: Sequence[str]) -> None:
    for other in others:
        world.simulation.network.mend(source=victim, target=other)
        world.simulation.network.mend(source=other, target=victim)
