"""A disk that goes bad: bits of one store's files flip, again and again, while all stores work.

The store may halt as a whole or halt some of its replicas, and may repair them from its peers. It
never serves what is damaged, and what it has does not spread.
"""

import asyncio
import random
from collections.abc import Sequence

from raftwood.testing import Machine, Simulation
from tests.kits.raft.hosts.store import FOLDER

SEGMENTS = ".segment"
SNAPSHOTS = "/snapshots/"


class Damage:
    """Flips bits on the disk of one machine."""

    def __init__(
        self, simulation: Simulation, victim: Machine, *, kinds: Sequence[str], every_s: float
    ) -> None:
        self.victim = victim
        self._simulation = simulation
        self._kinds = kinds
        self._every_s = every_s
        self._random = random.Random(f"damage {simulation.seed}")
        self.flips = 0

    async def run(self, *, until: float) -> None:
        while True:
            pause_s = self._random.uniform(0, 2 * self._every_s)
            if self._simulation.now + pause_s >= until:
                return
            await asyncio.sleep(pause_s)
            self._flip()
            if self._random.random() < 0.3:
                # What is only in memory hides the damage until the next start.
                self.victim.kill()

    def _flip(self) -> None:
        """Any place of a log segment or a snapshot, more often near its beginning."""
        sizes = self._sizes()
        kind = self._random.choice(self._kinds)
        paths = [path for path in sorted(sizes) if kind in path]
        if paths:
            path = self._random.choice(paths)
            offset = int(sizes[path] * self._random.random() ** 2)
            self.victim.disk.flip_bit(path, offset=offset, bit=self._random.randrange(8))
            self.flips += 1

    def _sizes(self) -> dict[str, int]:
        return {
            path: inode.cached.length
            for path, inode in self.victim.disk.file_system.files.items()
            if path.startswith(FOLDER) and inode.cached.length
        }
