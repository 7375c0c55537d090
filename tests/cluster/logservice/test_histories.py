"""Stores are killed, stopped and cut off while clients append and read: no answer was wrong."""

import random
from pathlib import Path

import pytest

from tests.kits.logservice.churn import run_churn
from tests.kits.logservice.load import Load
from tests.kits.logservice.processes import log_stores
from tests.kits.logservice.storm import run_storm
from tests.kits.running import run

FAULTS = 12


def test_no_answer_was_wrong_after_faults_of_all_kinds(tmp_path: Path) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    assert run_storm(tmp_path, seed, FAULTS).total() == FAULTS


@pytest.mark.slow
def test_no_answer_was_wrong_while_members_change_and_stores_are_killed(tmp_path: Path) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    run_churn(tmp_path, seed, rounds=3)


def test_all_that_was_acked_is_there_once_after_three_restarts_at_once(tmp_path: Path) -> None:
    async def body() -> None:
        async with log_stores(tmp_path) as stores:
            await stores.start()
            await stores.runs()
            clients = [await stores.client() for _ in range(2)]
            async with Load(clients, clients) as load:
                for _ in range(2):
                    await load.goes_on()
                    await load.truncate(clients[0], await clients[0].get_latest_lsn() - 20)
                    await stores.kill(*stores.first)
                    await stores.start()
                print(f"goes on after {await load.goes_on():.1f} s")
            assert not load.unknown
            print(await load.check(clients[0]))

    run(body())
