"""The `Environment` of one simulated process: its node's clock and disk, and seeded randomness."""

import random

from raftwood.base.environment import Environment
from raftwood.simulation.disk import SimulatedDisk
from raftwood.simulation.nodes import Process


def simulated_environment(process: Process, disk: SimulatedDisk) -> Environment:
    """What a program on a node takes from the world, for as long as its process lives."""
    node = process.node
    # A restarted process draws other numbers than its predecessor, in every run the same.
    source = random.Random(f"{node.loop.seed}/{node.name}/{process.number}")
    return Environment(
        clock=node.clock,
        random=source,
        files=disk.session(process),
        end_process=process.end_itself,
    )
