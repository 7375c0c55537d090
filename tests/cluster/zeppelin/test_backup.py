"""A table of real nodes is backed up under writes by processes that are killed, and restored."""

import json
import os
import subprocess
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec

from raftwood.zeppelin.backup_format import (
    MANIFEST,
    PartitionBackup,
    TableManifest,
    decode_manifest,
)
from raftwood.zeppelin.client import Kv
from raftwood.zeppelin.model import TableConfig
from raftwood.zeppelin.slots import slot_of
from tests.kits.processes import RAFTWOOD
from tests.kits.zeppelin.processes import KvProcesses, Login, kv_processes

STILL = {b"still%d" % number: b"%d" % number * 40 for number in range(12_000)}
MOVING = [f"moving{number}" for number in range(60)]
RATE = "1500kB"
WAIT_S_MAX = 60.0


class Rounds:
    """Gives some keys the number of the round, one after the other, round after round."""

    def __init__(self, kv: Kv) -> None:
        self._kv = kv
        self.begun = self.done = 0
        self._is_over = threading.Event()

    def round(self) -> None:
        self.begun += 1
        for key in MOVING:
            self._kv.set(key, str(self.begun))
            self._is_over.wait(0.005)
        self.done = self.begun

    @contextmanager
    def going_on(self) -> Iterator[None]:
        def write() -> None:
            while not self._is_over.is_set():
                self.round()

        thread = threading.Thread(target=write)
        thread.start()
        try:
            yield
        finally:
            self._is_over.set()
            thread.join(WAIT_S_MAX)
        assert not thread.is_alive()


def connected(cluster: KvProcesses, login: Login) -> Kv:
    return Kv.connect(addresses(cluster), user=login.user, password=login.password)


def addresses(cluster: KvProcesses) -> str:
    return ",".join(node.address for node in cluster.nodes.values())


def begun(cluster: KvProcesses, login: Login, *arguments: str) -> "subprocess.Popen[str]":
    """A command of a user of a table."""
    options = (
        f"--config={cluster.config}",
        f"--addresses={addresses(cluster)}",
        f"--user={login.user}",
        "--set=zeppelin_client.timeout_ms=4000",
        "--format=json",
    )
    return subprocess.Popen(
        (*RAFTWOOD, *arguments, *options),
        env={**os.environ, "RAFTWOOD_ZEPPELIN_CLIENT__PASSWORD": login.password},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def done(process: "subprocess.Popen[str]") -> str:
    out, error = process.communicate(timeout=WAIT_S_MAX)
    assert process.returncode == 0, (out, error)
    return out


def states(folder: Path) -> list[PartitionBackup]:
    return [
        msgspec.json.decode(each.read_bytes(), type=PartitionBackup)
        for each in sorted((folder / "partitions").glob("*.json"))
    ]


def killed_midway(cluster: KvProcesses, login: Login, folder: Path) -> list[PartitionBackup]:
    """A backup that is killed when some partitions are finished and others are not."""
    process = begun(
        cluster, login, "kv", "backup", f"--to={folder}", f"--rate={RATE}", "--parallel=2"
    )
    deadline = time.monotonic() + WAIT_S_MAX
    while True:
        found = states(folder)
        if any(each.is_finished for each in found) and not all(each.is_finished for each in found):
            break
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < deadline
        time.sleep(0.01)
    process.kill()
    process.communicate()
    return states(folder)


def check(manifest: TableManifest, found: dict[bytes, bytes], *, before: int, after: int) -> None:
    """What was restored is what was written, as of one moment in each partition."""
    assert {key: value for key, value in found.items() if key in STILL} == STILL
    assert len(found) == len(STILL) + len(MOVING)
    for partition in manifest.partitions:
        values = [
            int(found[key]) for key in map(str.encode, MOVING) if slot_of(key) in partition.slots
        ]
        # The later keys are a round behind, if at all.
        assert values == sorted(values, reverse=True)
        assert before <= values[-1] <= values[0] <= min(values[-1] + 1, after)


def test_a_backup_under_writes_survives_kills_and_is_restored_elsewhere(tmp_path: Path) -> None:
    folder = tmp_path / "backup"
    with kv_processes(tmp_path, nodes=2) as cluster:
        login = cluster.create_table(
            "orders", TableConfig(partitions=6, replicas=2, min_replicas=2)
        )
        copy = cluster.create_table("copy", TableConfig(partitions=2, replicas=1))
        with connected(cluster, login) as kv:
            kv.set_many(STILL)
            rounds = Rounds(kv)
            rounds.round()
            with rounds.going_on():
                before = rounds.done
                kept = killed_midway(cluster, login, folder)
                open_one = next(each for each in kept if not each.is_finished)
                gone = next(
                    node
                    for node in cluster.nodes.values()
                    if node.address == open_one.about.address
                )
                gone.kill_now()
                gone.start()
                done(begun(cluster, login, "kv", "backup", f"--to={folder}"))
                after = rounds.begun
        manifest = decode_manifest((folder / MANIFEST).read_bytes(), "")
        for each in kept:
            now = manifest.partitions[each.about.partition]
            if each.is_finished:
                assert now == each
        assert manifest.partitions[open_one.about.partition].about.id != open_one.about.id
        (row,) = json.loads(done(begun(cluster, copy, "kv", "restore", f"--from={folder}")))
        assert row["keys"] == manifest.pairs
        with connected(cluster, copy) as kv:
            found: dict[bytes, bytes] = {}
            for place in kv.partitions():
                with kv.checkpoint(place.number) as checkpoint:
                    for page in checkpoint.pages():
                        found |= zip(page.keys(), page.values(), strict=True)
        check(manifest, found, before=before, after=after)
