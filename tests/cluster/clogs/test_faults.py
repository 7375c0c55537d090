"""What users of clogs are promised, with real processes and real faults: each line that was taken
is stored once and in order per file, and what is dropped is counted, whatever is killed, paused,
gone or full meanwhile.
"""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Self

import msgspec
import pytest

from raftwood.app.command_line import EXIT_INVALID
from raftwood.base.seams import MetaStore, SetKey
from raftwood.clogs.client import ShipperStatus
from raftwood.clogs.configuration.meta_store import ConfigurationVersion, Pointer
from raftwood.clogs.configuration.text import text_digest
from raftwood.clogs.model import RingConfiguration
from tests import lasting
from tests.clogs_kit.processes import (
    HA,
    LOGSTORE,
    PROJECT,
    QUICK_CLIENT,
    ClogsProcesses,
    ProgramProcess,
    ShipProcess,
    clogs_processes,
    new_program,
    wait_until,
)
from tests.clogs_kit.program import DIRECT, Plan, Report
from tests.clogs_kit.ring import KEY, SECRET
from tests.clogs_kit.ring_thread import RingThread
from tests.cluster.small_disk import in_small_disk

pytestmark = pytest.mark.slow

GONE_S = 8.5
"""All receivers, and for as long as they take to start; simulations have them gone for longer."""
FILES = ("a.log", "b.log", "c.log")
PROGRAM_FILES = [f"app-{number}.log" for number in range(4)]
REFUSED = "the ring's configuration is refused, and the last good one stays"
FULL = "the spool takes no more for now"
_ROTATE_S = 1.2


class LogWriter:
    """Appends numbered lines to files all the time, and renames the files away now and then."""

    def __init__(self, folder: Path, is_known: Callable[[Path], bool]) -> None:
        """`is_known`: whether the file that has this path now is followed by somebody. One that is
        renamed before anybody saw it is nobody's to find."""
        folder.mkdir()
        self._folder = folder
        self._is_known = is_known
        self._is_over = False
        self._lock = threading.Lock()
        self.may_rotate = True
        self.written = dict.fromkeys(FILES, 0)
        self.rotations = 0
        self.made_at_ns = dict.fromkeys(FILES, 0)
        """When the files were made that have the names now."""
        self._thread = threading.Thread(target=self._write_on, name="writer of logs")

    def path(self, name: str) -> Path:
        return self._folder / name

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over = True
        self._thread.join()

    def rotate(self, name: str) -> None:
        with self._lock:
            self.rotations += 1
            self.path(name).rename(self.path(f"{name}.{self.rotations}"))

    def _write_on(self) -> None:
        rotated_at, turn = time.monotonic(), 0
        while not self._is_over:
            for name in FILES:
                self._append(name)
            if self.may_rotate and time.monotonic() - rotated_at >= _ROTATE_S:
                name = FILES[turn % len(FILES)]
                if self._is_known(self.path(name)):
                    self.rotate(name)
                    rotated_at, turn = time.monotonic(), turn + 1
            time.sleep(0.025)

    def _append(self, name: str) -> None:
        with self._lock:
            first = self.written[name]
            path = self.path(name)
            if not path.exists():
                self.made_at_ns[name] = time.time_ns()
            with path.open("a") as file:
                file.writelines(f"{name} {number}\n" for number in range(first, first + 4))
            self.written[name] = first + 4


class Story:
    """One run: who ships, what befalls them, and what they were promised."""

    def __init__(self, cluster: ClogsProcesses, folder: Path) -> None:
        self.cluster = cluster
        self._folder = folder
        self.ship = cluster.ship(f"{folder}/logs/*.log", name="{base}", state=folder / "ship-state")
        self.lives: list[tuple[str, ProgramProcess]] = []
        self.promised: dict[str, Report] = {}
        """What each life of the program said last."""

    @property
    def program(self) -> ProgramProcess:
        return self.lives[-1][1]

    @property
    def senders(self) -> tuple[ShipProcess, ProgramProcess]:
        return self.ship, self.program

    def begin_program(self) -> None:
        life = f"life-{len(self.lives) + 1}"
        settings = self.cluster.client_settings() | {
            "spool": "always",
            "when_full": "spool",
            "spool_folder": str(self._folder / "spool"),
        }
        plan = Plan(life=life, files=PROGRAM_FILES, settings=settings)
        self.lives.append((life, self.cluster.program(plan)))
        self.program.begin()

    def kill_program(self) -> None:
        self.program.kill_now()
        life, program = self.lives[-1]
        self.promised[life] = program.report()

    def seen(self, what: str, holds: Callable[[ShipperStatus], bool]) -> None:
        """By both who ship."""
        for each in self.senders:
            wait_until(f"{each.name}: {what}", lambda each=each: _holds(each, holds))  # type: ignore[misc]

    def isolated(self, name: str) -> None:
        self.seen(f"{name} is isolated", lambda status: name in _isolated(status))

    def recovered(self) -> None:
        """All are live, and lines come through."""
        count = len(self.cluster.servers)
        self.seen(
            "all servers are live",
            lambda status: len(status.servers) == count and not _isolated(status),
        )
        self.lines_flow()

    def lines_flow(self) -> None:
        before = [_acked(each) for each in self.senders]
        for each, acked in zip(self.senders, before, strict=True):
            wait_until(
                f"{each.name}: more lines are stored",
                lambda each=each, acked=acked: _acked(each) > acked,  # type: ignore[misc]
            )

    def has_version(self, version: int) -> None:
        self.seen(f"version {version}", lambda status: status.version == version)


def _holds(sender: ShipProcess | ProgramProcess, holds: Callable[[ShipperStatus], bool]) -> bool:
    assert sender.is_running, sender.log.read_text()[-2000:]
    status = sender.status()
    assert status is None or _adds_up(status), status
    return status is not None and holds(status)


def _isolated(status: ShipperStatus) -> set[str]:
    return {each.server for each in status.servers if each.is_isolated}


def _acked(sender: ShipProcess | ProgramProcess) -> int:
    status = sender.status()
    return 0 if status is None else status.counters.acked


def _adds_up(status: ShipperStatus) -> bool:
    """Nothing is left uncounted."""
    counters = status.counters
    known = counters.acked + counters.dropped + counters.refused + status.held_lines
    return counters.taken + counters.resumed == known


# What befalls them


def _a_receiver_is_killed(story: Story) -> None:
    receiver = story.cluster.receivers["log-1"]
    receiver.kill_now()
    story.isolated("log-1")
    story.lines_flow()
    receiver.start()
    story.recovered()


def _another_one_is_paused(story: Story) -> None:
    receiver = story.cluster.receivers["log-2"]
    receiver.pause()
    try:
        story.isolated("log-2")
        story.lines_flow()
    finally:
        receiver.resume()
    story.recovered()


def _all_are_gone_for_a_while(story: Story) -> None:
    """Meanwhile the program is killed, and begun again."""
    receivers = story.cluster.receivers.values()
    for each in receivers:
        each.kill_now()
    came_back_at = time.monotonic() + GONE_S
    story.seen("panic", lambda status: status.is_panic)
    spooled = story.program.report().synced
    wait_until("more lines are spooled", lambda: story.program.report().synced > spooled + 20)
    story.kill_program()
    story.begin_program()
    wait_until("the next life spools", lambda: story.program.report().synced > 20)
    time.sleep(max(0.0, came_back_at - time.monotonic()))
    for each in receivers:
        each.begin()
    for each in receivers:
        each.wait_ready()
    story.recovered()
    status = story.program.status()
    assert status is not None
    assert status.counters.resumed > 0


def _the_configuration_changes(story: Story, folder: Path) -> None:
    cluster = story.cluster
    file = folder / "ring.json"

    def offer(configuration: RingConfiguration) -> int:
        file.write_bytes(msgspec.json.encode(configuration))
        return cluster.command("set", str(file))

    first, second, third = cluster.servers
    heavier = (msgspec.structs.replace(first, weight=3), second, third)
    assert offer(RingConfiguration(heavier, ha=HA)) == 0
    story.has_version(2)
    assert offer(RingConfiguration((first, third), ha=HA)) == 0
    story.has_version(3)
    story.seen("two servers", lambda status: len(status.servers) == 2)
    # One that makes no sense is refused by who sets it, and by who ships where it was set all the
    # same.
    wrong = RingConfiguration((first, first), ha=HA)
    assert offer(wrong) == EXIT_INVALID
    cluster.with_metastore(lambda store: _set_unchecked(store, wrong, version=4, replaced=3))
    for each in story.senders:
        wait_until(f"{each.name} refuses it", lambda each=each: bool(each.told(REFUSED)))  # type: ignore[misc]
    story.lines_flow()
    story.seen("the last good one", lambda status: status.version == 3)
    assert cluster.command("rollback", "--to=1") == 0
    story.has_version(1)
    story.recovered()


async def _set_unchecked(
    store: MetaStore, configuration: RingConfiguration, *, version: int, replaced: int
) -> None:
    text = msgspec.json.encode(configuration, order="sorted")
    digest = text_digest(text)
    entry = ConfigurationVersion(
        version=version, digest=digest, servers=2, comment="", replaced=replaced, set_at_ms=0
    )
    pointer = Pointer(version, version, digest)
    values = {
        f"versions/{version:012d}": text,
        f"history/{version:012d}": msgspec.json.encode(entry),
        "current": msgspec.json.encode(pointer),
    }
    await store.transact(
        (), [SetKey(f"clogs/default/{key}", value) for key, value in values.items()]
    )


def _a_shard_is_split_and_who_ships_is_killed(story: Story, writer: LogWriter) -> None:
    """In the middle of batches, which are stored after that; a file is renamed while nobody follows
    it."""
    cluster = story.cluster
    writer.may_rotate = False
    wait_until("the file is known for good", lambda: _is_stored_partly(story.ship, writer, "a.log"))
    with cluster.client() as client:
        client.split_shard(PROJECT, LOGSTORE, shard=0)
        cluster.store.pause()
        try:
            _wait_under_way(story)
            story.ship.kill_now()
            story.kill_program()
        finally:
            cluster.store.resume()
        writer.rotate("a.log")
        story.ship.begin()
        story.begin_program()
        client.split_shard(PROJECT, LOGSTORE, shard=1)
    writer.may_rotate = True
    story.recovered()


def _wait_under_way(story: Story) -> None:
    """Until both have batches that were sent and are not answered since now."""
    now_ns, given = time.time_ns(), story.program.report().given

    def is_so() -> bool:
        shipped, report = story.ship.tail(), story.program.report()
        return (
            shipped is not None
            and shipped.time_ns > now_ns
            and shipped.shipper.in_flight > 0
            and report.given > given
            and report.status is not None
            and report.status.in_flight > 0
        )

    wait_until("batches wait for the store", is_so)


def _is_stored_partly(ship: ShipProcess, writer: LogWriter, name: str) -> bool:
    found = ship.tail()
    return (
        found is not None
        and found.time_ns > writer.made_at_ns[name]
        and any(
            each.path == str(writer.path(name)) and each.offset > 0 for each in found.tail.file_list
        )
    )


def test_lines_are_stored_once_and_in_order_whatever_befalls_servers_and_shippers(
    tmp_path: Path,
) -> None:
    with clogs_processes(tmp_path, receivers=3, shards=2) as cluster:
        story = Story(cluster, tmp_path)
        with LogWriter(tmp_path / "logs", story.ship.holds) as writer:
            story.ship.begin()
            story.begin_program()
            story.recovered()
            _a_receiver_is_killed(story)
            _another_one_is_paused(story)
            _all_are_gone_for_a_while(story)
            _the_configuration_changes(story, tmp_path)
            _a_shard_is_split_and_who_ships_is_killed(story, writer)
        _end(story, writer)
        stored = cluster.lines()
        assert not cluster.strange_words(REFUSED)
    assert writer.rotations >= 5
    for name in FILES:
        assert stored.pop(name) == [f"{name} {number}" for number in range(writer.written[name])]
    _check_program(story, stored)


def _end(story: Story, writer: LogWriter) -> None:
    """Both in order, with all stored."""
    paths = [path for name in FILES if (path := writer.path(name)).exists()]
    sizes = {(str(path), path.stat().st_size) for path in paths}

    def has_caught_up() -> bool:
        found = story.ship.tail()
        if found is None or found.tail.behind_bytes:
            return False
        return sizes <= {(each.path, each.offset) for each in found.tail.file_list}

    wait_until("all of the files is stored", has_caught_up)
    assert story.ship.stop() == 0
    assert story.program.stop() == 0
    life, program = story.lives[-1]
    story.promised[life] = program.report()
    assert story.promised[life].is_last
    for each in story.senders:
        status = each.status()
        assert status is not None
        assert _adds_up(status), status
        assert not status.held_lines
        assert not status.counters.dropped
        assert not status.counters.refused
    shipped = story.ship.tail()
    assert shipped is not None
    assert shipped.tail.counters.resumed_batches > 0
    assert not shipped.tail.counters.unknown_batches
    assert not shipped.tail.counters.cut_bytes


def _check_program(story: Story, stored: dict[str, list[str]]) -> None:
    assert set(stored) == {*PROGRAM_FILES, DIRECT}
    assert len(story.promised) == len(story.lives) == 3
    for name, lines in stored.items():
        numbers: dict[str, list[int]] = {}
        for line in lines:
            life, _, number = line.partition(" ")
            numbers.setdefault(life, []).append(int(number))
        for life, report in story.promised.items():
            found = numbers.pop(life)
            # Once, in order, and nothing in between is missing.
            assert found == list(range(len(found))), (name, life)
            safe = report.delivered if name == DIRECT else report.synced
            assert len(found) >= safe > 0, (name, life)
            if report.is_last:
                assert len(found) == (report.sent if name == DIRECT else report.given)
        assert not numbers, name


# What is dropped


@contextmanager
def _running(process: ProgramProcess) -> Iterator[ProgramProcess]:
    try:
        process.start()
        yield process
    finally:
        process.discard()
        lasting.ended(process.pid)


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
    return Plan(life="one", files=PROGRAM_FILES, settings=settings, is_synced=False)


def _check_dropped(ring: RingThread, program: ProgramProcess) -> int:
    """What is missing in the stream was dropped, and nothing else; how many lines that are."""
    report = program.report()
    assert report.is_last
    status = report.status
    assert status is not None
    missing = 0
    for name in PROGRAM_FILES:
        numbers = [int(line.split()[1]) for line in ring.lines(name)]
        assert numbers == sorted(set(numbers)), name
        assert numbers[-1] == report.given - 1
        missing += report.given - len(numbers)
    assert status.counters.taken == report.given * len(PROGRAM_FILES)
    assert _adds_up(status), status
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
    given = program.report().given
    time.sleep(0.7)
    return program.report().given == given
