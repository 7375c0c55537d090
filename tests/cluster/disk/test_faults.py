"""Real processes and real faults: nothing acked is lost, and what is wrong is named."""

import asyncio
import itertools
import json
import os
import random
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from raftwood.cli.command_line import run as raftwood
from raftwood.disk.real_environment import EXIT_CODE_ENDED
from raftwood_demos import durable_log
from raftwood_demos.durable_log_writer import GROUPS
from tests.kits.disk import disk_full
from tests.kits.processes import in_small_disk, injected
from tests.kits.running import run

WRITER = (sys.executable, "-m", "raftwood_demos.durable_log_writer")


def acked_by(output: str) -> dict[int, int]:
    last = dict.fromkeys(range(GROUPS), 0)
    for line in output.splitlines():
        if line.startswith("acked "):
            _, group, index = line.split()
            last[int(group)] = max(last[int(group)], int(index))
    return last


def assert_nothing_acked_is_lost(store: Path, acked: dict[int, int]) -> None:
    assert sum(acked.values()) > 0
    verified, missing = asyncio.run(durable_log.last_look(str(store), acked))
    assert verified > 0
    assert missing == 0


def test_nothing_acked_is_lost_when_the_writer_is_killed(tmp_path: Path) -> None:
    outcome = run(
        durable_log.run(str(tmp_path / "store"), kills=2, seconds=0.4, on_life=lambda _: None)
    )
    assert outcome.held
    assert len(outcome.lives) == 2


@pytest.mark.needs("strace")
@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("fdatasync:error=EIO:when=12", "DataSync failed: [Errno 5]"),
        ("pwritev,pwritev2:error=EIO:when=9", "Write failed: [Errno 5]"),
        ("pwritev,pwritev2:retval=100:when=11", "short write: 100 of"),
        ("pwritev,pwritev2:error=ENOSPC:when=10", "Write failed: [Errno 28]"),
        ("fsync:error=EIO:when=4", "[Errno 5]"),
    ],
)
def test_a_failing_disk_ends_the_process_before_anything_is_acked_wrongly(
    tmp_path: Path, fault: str, message: str
) -> None:
    store = tmp_path / "store"
    process = subprocess.run(
        (*injected(fault), *WRITER, store),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert process.returncode in (EXIT_CODE_ENDED, 1), process.stderr
    assert message in process.stderr
    acked = acked_by(process.stdout)
    if not fault.startswith(
        "fsync"
    ):  # that one fails while the folder is made, before the first ack
        assert_nothing_acked_is_lost(store, acked)


@pytest.mark.needs("tmpfs")
@pytest.mark.parametrize("loop", ["asyncio", "uvloop"])
def test_a_full_disk_refuses_writes_and_goes_on_when_room_is_made(
    tmp_path: Path, loop: str
) -> None:
    mounted = tmp_path / "disk"
    mounted.mkdir()
    script = Path(disk_full.__file__)
    process = subprocess.run(
        (*in_small_disk(mounted, 600), sys.executable, script, mounted / "store", loop),
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert process.returncode == 0, process.stderr
    result = json.loads(process.stdout)
    assert result["acked"] > 100
    assert "no room in" in result["refusal"]
    assert "truncate the log" in result["refusal"]
    assert result["went_on"] > 100, "more than was left of the segment"
    assert result["head"] == result["acked"] - 20 + 1
    assert result["next"] == result["acked"] + result["went_on"] + 1
    assert result["intact"]


@pytest.fixture(scope="module")
def killed_store(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[int, int]]:
    """A store whose writer was killed a moment after its last ack."""
    store = tmp_path_factory.mktemp("killed") / "store"
    with subprocess.Popen((*WRITER, store), stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        lines = list(itertools.islice(process.stdout, 5_000))
        process.send_signal(signal.SIGSTOP)  # lets the last acks into the pipe, and nothing after
        process.send_signal(signal.SIGKILL)
        lines += process.stdout
    return store, acked_by("".join(lines))


@pytest.mark.parametrize("seed", range(10))
def test_a_flipped_bit_is_named_and_nothing_acked_comes_back_changed(
    killed_store: tuple[Path, dict[int, int]],
    tmp_path: Path,
    seed: int,
    capsys: pytest.CaptureFixture[str],
) -> None:
    original, acked = killed_store
    store = tmp_path / "store"
    shutil.copytree(original, store)
    rng = random.Random(seed)
    victims = sorted(path for path in store.rglob("*") if path.is_file() and path.stat().st_size)
    victim = victims[seed % len(victims)]
    data = bytearray(victim.read_bytes())
    used = len(data.rstrip(b"\0"))
    # Below what the last flushes hold, where damage can't be mistaken for a torn write.
    offset = rng.randrange(used if victim.name == "IDENTITY" else max(64, used - (1 << 20)))
    data[offset] ^= 1 << rng.randrange(8)
    victim.write_bytes(data)

    status = raftwood(["store", "check", str(store)])
    output = capsys.readouterr()
    if status == 0:  # a bit that carries no meaning, such as padding
        assert_nothing_acked_is_lost(store, acked)
    else:
        assert victim.name in output.out + output.err
        with pytest.raises(Exception, match=victim.name):
            asyncio.run(durable_log.last_look(str(store), acked))
        before = victim.read_bytes()
        assert before == bytes(data), "a refused store is left as it was found"


def test_a_writer_does_not_outlive_its_reader(tmp_path: Path) -> None:
    with subprocess.Popen((*WRITER, tmp_path / "store"), stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        process.stdout.readline()
        process.stdout.close()
        assert process.wait(timeout=120) == 1


def test_two_processes_cannot_use_one_store(tmp_path: Path) -> None:
    store = tmp_path / "store"
    with subprocess.Popen((*WRITER, store), stdout=subprocess.PIPE, text=True) as first:
        assert first.stdout is not None
        first.stdout.readline()
        second = subprocess.run(
            (*WRITER, store), capture_output=True, text=True, timeout=120, check=False
        )
        first.kill()
    assert second.returncode == 1
    assert "in use by another process" in second.stderr
    assert os.path.exists(store / "IDENTITY")
