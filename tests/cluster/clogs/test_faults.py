"""What users of clogs are promised, with real processes and real faults: each line that was taken
is stored once and in order per file, whatever is killed, paused, changed and gone meanwhile.
"""

import time
from collections.abc import Callable
from pathlib import Path

import msgspec

from raftwood.base.seams import MetaStore, SetKey
from raftwood.cli.command_line import EXIT_INVALID
from raftwood.clogs.client import ShipperStatus
from raftwood.clogs.configuration import RingConfiguration, text_digest
from raftwood.clogs.configuration_store import ConfigurationPointer, ConfigurationVersion
from tests.kits.clogs.log_writer import FILES, LogWriter
from tests.kits.clogs.processes import (
    HA,
    LOGSTORE,
    PROJECT,
    REFUSED,
    ClogsProcesses,
    ProgramProcess,
    ShipProcess,
    adds_up,
    clogs_processes,
    wait_until,
)
from tests.kits.clogs.program import DIRECT, Plan, Report

PROGRAM_FILES = [f"app-{number}.log" for number in range(4)]


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
    assert sender.is_running, sender.tail()
    status = sender.status()
    assert status is None or adds_up(status), status
    return status is not None and holds(status)


def _isolated(status: ShipperStatus) -> set[str]:
    return {each.server for each in status.servers if each.is_isolated}


def _acked(sender: ShipProcess | ProgramProcess) -> int:
    status = sender.status()
    return 0 if status is None else status.counters.acked


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
    story.seen("panic", lambda status: status.is_panic)
    spooled = story.program.report().synced
    wait_until("more lines are spooled", lambda: story.program.report().synced > spooled + 20)
    story.kill_program()
    story.begin_program()
    wait_until("the next life spools", lambda: story.program.report().synced > 20)
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
    pointer = ConfigurationPointer(version, version, digest)
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
        shipped, report = story.ship.shipped(), story.program.report()
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
    found = ship.shipped()
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
        found = story.ship.shipped()
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
        assert adds_up(status), status
        assert not status.held_lines
        assert not status.counters.dropped
        assert not status.counters.refused
    shipped = story.ship.shipped()
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
