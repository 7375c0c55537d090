"""Lines that nobody has room for: they are dropped, as the policy says, and counted exactly, or who
gives them waits; with programs as real processes, all servers gone, and a disk that is full.
"""

import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import msgspec
import pytest

from tests.kits.clogs.processes import (
    HA,
    QUICK_CLIENT,
    REFUSED,
    ProgramProcess,
    adds_up,
    new_program,
    wait_until,
)
from tests.kits.clogs.program import Plan
from tests.kits.clogs.ring import KEY, SECRET
from tests.kits.clogs.ring_thread import RingThread
from tests.kits.processes import in_small_disk

FILES = [f"app-{number}.log" for number in range(4)]
FULL = "the spool takes no more for now"


@contextmanager
def _running(process: ProgramProcess) -> Iterator[ProgramProcess]:
    try:
        process.start()
        yield process
    finally:
        process.discard()


def _ring_file(ring: RingThread, folder: Path) -> Path:
    """The ring's configuration, as a plain file."""
    servers = [
        {"host": "127.0.0.1", "port": int(address.rpartition(":")[2]), "name": name}
        for name, address in zip(ring.names, ring.servers, strict=True)
    ]
    file = folder / "ring.json"
    file.write_bytes(msgspec.json.encode({"servers": servers, "ha": HA}))
    return file


def _plan(ring: RingThread, folder: Path, **settings: object) -> Plan:
    settings = {
        **QUICK_CLIENT,
        "access_key": KEY,
        "access_secret": SECRET.decode(),
        "configuration_file": str(_ring_file(ring, folder)),
        "compression": "none",
        **settings,
    }
    return Plan(life="one", files=FILES, settings=settings, is_synced=False)


def _check_dropped(ring: RingThread, program: ProgramProcess) -> int:
    """What is missing in the stream was dropped, and nothing else; how many lines that are."""
    report = program.report()
    assert report.is_last
    status = report.status
    assert status is not None
    missing = 0
    for name in FILES:
        numbers = [int(line.split()[1]) for line in ring.lines(name)]
        assert numbers == sorted(set(numbers)), name
        assert numbers[-1] == report.given - 1
        missing += report.given - len(numbers)
    assert status.counters.taken == report.given * len(FILES)
    assert adds_up(status), status
    assert not status.held_lines
    assert not report.failed
    assert missing == status.counters.dropped
    return missing


def test_lines_that_are_dropped_while_all_servers_are_gone_are_counted_exactly(
    tmp_path: Path,
) -> None:
    with RingThread() as ring:
        plan = _plan(ring, tmp_path, memory_bytes_max=64 << 10, batch_bytes_max=4 << 10)
        ring.stop_all()
        with _running(new_program(tmp_path, "dropping", plan)) as program:
            wait_until("lines are dropped", lambda: _dropped(program) > 0)
            # A configuration that makes no sense is refused in a file, too.
            file = tmp_path / "ring.json"
            good = file.read_bytes()
            file.write_bytes(b'{"servers": []}')
            wait_until("the file is refused", lambda: bool(program.told(REFUSED)))
            file.write_bytes(good)
            dropped = _dropped(program)
            wait_until("more lines are dropped", lambda: _dropped(program) > dropped)
            for name in ring.names:
                ring.start(name)
            assert program.stop() == 0
            assert _check_dropped(ring, program) > 0


def _dropped(program: ProgramProcess) -> int:
    status = program.status()
    return 0 if status is None else status.counters.dropped


@pytest.mark.needs("tmpfs")
@pytest.mark.parametrize("when_full", ["spool", "block"])
def test_lines_wait_on_a_full_disk_or_are_dropped_and_counted_as_the_policy_says(
    when_full: str, tmp_path: Path
) -> None:
    spool = tmp_path / "spool"
    spool.mkdir()
    with RingThread() as ring:
        plan = msgspec.structs.replace(
            _plan(
                ring,
                tmp_path,
                spool="always",
                when_full=when_full,
                spool_folder=str(spool),
                memory_bytes_max=1 << 20,
                batch_bytes_max=64 << 10,
            ),
            turn_lines=20,
            text=" " + "x" * 4_000,
        )
        ring.stop_all()
        # There is room for a segment of the spool, and not for another one.
        wrapper = in_small_disk(spool, 20 << 10)
        with _running(new_program(tmp_path, "full", plan, wrapper=wrapper)) as program:
            wait_until("the disk is full", lambda: bool(program.told(FULL)))
            if when_full == "block":
                wait_until("the program waits", lambda: _stands_still(program))
            else:
                dropped = _dropped(program)
                wait_until("lines are dropped", lambda: _dropped(program) > dropped)
            for name in ring.names:
                ring.start(name)
            if when_full == "block":
                given = program.report().given
                wait_until("the program goes on", lambda: program.report().given > given)
            assert program.stop() == 0
            missing = _check_dropped(ring, program)
            assert (missing > 0) == (when_full == "spool")


def _stands_still(program: ProgramProcess) -> bool:
    """Between some of its reports."""
    given = program.report().given
    time.sleep(2.0)
    return program.report().given == given
