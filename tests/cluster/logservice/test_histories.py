"""Stores are killed, stopped and cut off while clients append and read: no answer was wrong."""

import random
from pathlib import Path

from tests.kits.logservice.churn import run_churn
from tests.kits.logservice.storm import KINDS, run_storm


def test_no_answer_was_wrong_after_faults_of_all_kinds(tmp_path: Path) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    assert run_storm(tmp_path, seed, KINDS).total() == KINDS


def test_no_answer_was_wrong_while_members_change_and_stores_are_killed(tmp_path: Path) -> None:
    seed = random.randrange(1 << 32)
    print(f"seed {seed}")
    run_churn(tmp_path, seed, rounds=1)
