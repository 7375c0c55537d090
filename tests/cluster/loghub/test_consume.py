"""`raftwood consume`, several processes on one SQLite file: join, take over, hand over."""

import json
import os
import subprocess
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from raftwood.loghub.client import LogHubClient
from tests.kits.processes import RAFTWOOD, RealProcess, quick_raftwood
from tests.kits.server.running import connected

SHARDS = 4
TIMEOUT_S = 4
WAIT_S_MAX = 120.0
STREAM = "consumed/s"


def environment_of(hub: dict[str, Any]) -> dict[str, str]:
    return {
        "RAFTWOOD_LOGHUB_CLIENT__ACCESS_KEY": hub["access_key_id"],
        "RAFTWOOD_LOGHUB_CLIENT__ACCESS_SECRET": hub["access_key_secret"],
        "RAFTWOOD_LOGHUB_CLIENT__GATEWAYS": hub["native"],
    }


class Consuming(RealProcess):
    """One `raftwood consume`; what it prints are the records."""

    def __init__(self, name: str, folder: Path) -> None:
        store = f"--store=sqlite:///{folder / 'leases.sqlite'}"
        options = (store, f"--name={name}", f"--timeout={TIMEOUT_S}s", "--format=json")
        super().__init__(name, folder, (*RAFTWOOD, "consume", STREAM, "--group=g", *options))

    def records(self) -> list[dict[str, Any]]:
        lines = self.output.read_bytes().rpartition(b"\n")[0].splitlines()
        return [json.loads(line) for line in lines]

    def numbers(self) -> list[int]:
        return [int(each["fields"]["n"]) for each in self.records()]


@contextmanager
def consuming(name: str, folder: Path, hub: dict[str, Any]) -> Iterator[Consuming]:
    found = Consuming(name, folder)
    try:
        found.launch(found.command, environment_of(hub))
        yield found
    finally:
        found.discard()


def until(holds: Callable[[], bool]) -> None:
    begin = time.monotonic()
    while not holds():
        assert time.monotonic() - begin < WAIT_S_MAX, "it takes too long"
        time.sleep(0.3)


def shards(consumer: Consuming, since: int) -> set[int]:
    return {each["shard"] for each in consumer.records() if int(each["fields"]["n"]) >= since}


class Load:
    """Numbered records, over all shards."""

    def __init__(self, client: LogHubClient) -> None:
        self._client = client
        self.count = 0

    def put(self, count: int = 40) -> int:
        """Answers the first number."""
        first = self.count
        with self._client.producer(*STREAM.split("/")) as producer:
            for number in range(first, first + count):
                producer.send({"n": str(number)}, key=f"{number}")
        self.count += count
        return first


def operate(folder: Path, hub: dict[str, Any], worker: Consuming) -> None:
    """A look at the group, a worker sent away, and all shards back to their beginnings."""

    def group(*arguments: str) -> Any:
        command, *others = arguments
        done = subprocess.run(
            (
                *(*quick_raftwood(), "group", command, STREAM, "g", *others),
                *(f"--store=sqlite:///{folder / 'leases.sqlite'}", "--format=json"),
            ),
            env=os.environ | environment_of(hub),
            capture_output=True,
            check=True,
            timeout=60,
        )
        return json.loads(done.stdout)

    rows = group("show")
    assert [(row["owner"], row["consumer"]) for row in rows] == [("third", "third")] * SHARDS
    assert group("drain", "third") == [{"name": "third"}]
    assert worker.wait() == 0
    assert len(group("reset", "--to=begin")) == SHARDS
    assert {row["owner"] for row in group("show")} == {""}
    assert min(row["lag_s"] for row in group("show")) > 0


def test_workers_join_hand_over_and_take_over(parts: dict[str, Any], tmp_path: Path) -> None:
    with connected(parts) as client, ExitStack() as stack:
        client.create_project(STREAM.split("/", maxsplit=1)[0])
        client.create_logstore(*STREAM.split("/"), shard_count=SHARDS)
        load = Load(client)
        load.put()
        first = stack.enter_context(consuming("first", tmp_path, parts["loghub"]))
        until(lambda: len(first.numbers()) == load.count)
        second = stack.enter_context(consuming("second", tmp_path, parts["loghub"]))

        def is_shared() -> bool:
            since = load.put()
            return len(shards(second, since)) == SHARDS // 2

        until(is_shared)
        both = (first, second)
        until(lambda: sum(len(each.numbers()) for each in both) >= load.count)
        counts = Counter(first.numbers() + second.numbers())
        assert counts == Counter(range(load.count)), "a graceful steal duplicates nothing"

        first.kill_now()
        since = load.put()
        until(lambda: set(second.numbers()) >= set(range(since, load.count)))
        assert second.stop() == 0, second.tail()
        seen = set(first.numbers()) | set(second.numbers())
        assert seen == set(range(load.count))

        third = stack.enter_context(consuming("third", tmp_path, parts["loghub"]))
        since = load.put()
        # It has to see first that the row of the one that was killed stands still.
        until(lambda: len(third.numbers()) == load.count - since)
        assert sorted(third.numbers()) == list(range(since, load.count))
        operate(tmp_path, parts["loghub"], third)
