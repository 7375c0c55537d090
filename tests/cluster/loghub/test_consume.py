"""`raftwood consume`, several processes on one SQLite file: join, take over, hand over."""

import json
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from raftwood.app.standalone import PORTS
from raftwood.loghub.client import LogHubClient
from tests.cluster.test_standalone import connected, consecutive_ports, running

SHARDS = 4
TIMEOUT_S = 3


def environment_of(hub: dict[str, Any]) -> dict[str, str]:
    return os.environ | {
        "PYTHONPATH": os.pathsep.join(sys.path),
        "RAFTWOOD_LOGHUB_CLIENT__ACCESS_KEY": hub["access_key_id"],
        "RAFTWOOD_LOGHUB_CLIENT__ACCESS_SECRET": hub["access_key_secret"],
        "RAFTWOOD_LOGHUB_CLIENT__GATEWAYS": hub["native"],
    }


class Consuming:
    """One `raftwood consume`, its output in a file."""

    def __init__(self, name: str, folder: Path, hub: dict[str, Any], *options: str) -> None:
        self.file = folder / f"{name}.out"
        self._errors = folder / f"{name}.err"
        with self.file.open("wb") as output, self._errors.open("wb") as errors:
            self.process = subprocess.Popen(
                (
                    *(sys.executable, "-m", "raftwood.app", "consume", "p/s", "--group=g"),
                    *(f"--store=sqlite:///{folder / 'leases.sqlite'}", f"--name={name}"),
                    *(f"--timeout={TIMEOUT_S}s", "--format=json", *options),
                ),
                stdout=output,
                stderr=errors,
                env=environment_of(hub),
                cwd=folder,
            )

    def records(self) -> list[dict[str, Any]]:
        assert self.process.poll() in (None, 0, -signal.SIGKILL), self._errors.read_text()
        lines = self.file.read_bytes().rpartition(b"\n")[0].splitlines()
        return [json.loads(line) for line in lines]

    def numbers(self) -> list[int]:
        return [int(each["fields"]["n"]) for each in self.records()]

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        assert self.process.wait(60) == 0, self._errors.read_text()


@contextmanager
def consuming(name: str, folder: Path, hub: dict[str, Any]) -> Iterator[Consuming]:
    found = Consuming(name, folder, hub)
    try:
        yield found
    finally:
        found.process.kill()
        found.process.wait()


def until(holds: Callable[[], bool], seconds: float = 60) -> float:
    begin = time.monotonic()
    while not holds():
        assert time.monotonic() - begin < seconds, "it takes too long"
        time.sleep(0.05)
    return time.monotonic() - begin


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
        with self._client.producer("p", "s") as producer:
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
                *(sys.executable, "-m", "raftwood.app", "group", command, "p/s", "g", *others),
                *(f"--store=sqlite:///{folder / 'leases.sqlite'}", "--format=json"),
            ),
            env=environment_of(hub),
            capture_output=True,
            check=True,
            timeout=60,
        )
        return json.loads(done.stdout)

    rows = group("show")
    assert [(row["owner"], row["consumer"]) for row in rows] == [("third", "third")] * SHARDS
    assert group("drain", "third") == [{"name": "third"}]
    assert worker.process.wait(60) == 0
    assert len(group("reset", "--to=begin")) == SHARDS
    assert {row["owner"] for row in group("show")} == {""}
    assert min(row["lag_s"] for row in group("show")) > 0


def test_workers_join_hand_over_and_take_over(tmp_path: Path) -> None:
    base = consecutive_ports(PORTS)
    given = ("standalone", f"--data={tmp_path / 'data'}", f"--port-base={base}")
    with (
        running(*given, folder=tmp_path) as parts,
        connected(parts) as client,
        ExitStack() as stack,
    ):
        client.create_project("p")
        client.create_logstore("p", "s", shard_count=SHARDS)
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

        first.process.kill()
        since = load.put()
        taken_s = until(lambda: set(second.numbers()) >= set(range(since, load.count)))
        assert taken_s < 2.5 * TIMEOUT_S
        second.stop()
        seen = set(first.numbers()) | set(second.numbers())
        assert seen == set(range(load.count))

        third = stack.enter_context(consuming("third", tmp_path, parts["loghub"]))
        since = load.put()
        # It has to see first that the row of the one that was killed stands still.
        until(lambda: len(third.numbers()) == load.count - since)
        assert sorted(third.numbers()) == list(range(since, load.count))
        operate(tmp_path, parts["loghub"], third)
