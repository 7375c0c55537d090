"""Connections to the servers of a ring."""

import asyncio

from raftwood.clogs.client.server_pool import RingConnections
from raftwood.disk.real_environment import real_environment
from tests.kits.clogs.ring import ACCESS, Ring


def test_not_the_same_server_is_asked_again_and_again() -> None:
    async def main() -> None:
        with real_environment() as environment:
            ring = Ring(environment)
            names = ["log-0", "log-1", "log-2"]
            for name in names:
                await ring.start(name)
            links = RingConnections(environment, ACCESS, lambda _: None)
            links.update(ring.configuration().configuration.servers)
            async with asyncio.timeout(60):
                while not all(map(links.is_connected, names)):  # noqa: ASYNC110
                    await asyncio.sleep(0.01)
            asked = [await links.any_channel(5.0) for _ in range(6)]
            assert asked[:3] == asked[3:]
            assert len(set(map(id, asked))) == 3
            await links.close()
            await ring.close()

    asyncio.run(main())
