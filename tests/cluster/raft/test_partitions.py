"""The network between stores loses every packet while clients write."""

import time
from pathlib import Path

import pytest

from tests.kits.raft.cluster import STORES
from tests.kits.raft.namespaces import Namespaces
from tests.kits.raft.scene import scene
from tests.kits.running import run

_ALONE_S = 1.5


@pytest.mark.needs("namespaces")
def test_nothing_acked_is_missing_after_the_network_lost_everything(tmp_path: Path) -> None:
    async def body(network: Namespaces) -> None:
        async with scene(tmp_path, wrappers=network.wrappers, hosts=network.hosts) as at:
            await at.cluster.let_lead(1)
            began = time.monotonic()
            network.cut(1, (2, 3))
            await at.answered_again("the leader is cut off", began)
            healed = time.monotonic()
            network.heal()
            await at.caught_up(1)
            print(f"the old leader has caught up after {time.monotonic() - healed:.2f} s")
            for store in STORES:
                network.cut(store, [other for other in STORES if other > store])
            await at.load.for_a_while(_ALONE_S)
            healed = time.monotonic()
            network.heal()
            await at.answered_again("all stores were alone", healed)

    with Namespaces() as network:
        run(body(network))
