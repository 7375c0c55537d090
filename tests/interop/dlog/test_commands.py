"""The command line and a gateway on the bookies of Apache BookKeeper."""

from pathlib import Path

import pytest
from kazoo.client import KazooClient

from raftwood.disk.real_environment import real_environment
from raftwood.dlog.bookkeeper.bookies import connect_bookkeeper
from raftwood.dlog.ledgers.metadata import LedgerConfig
from raftwood.loghub.model import LogKind
from raftwood.loghub.server.streams import StreamLimits
from raftwood.server.standalone import PORTS
from tests.kits.dlog.command_kit import Commands
from tests.kits.ports import consecutive_ports
from tests.kits.running import run
from tests.kits.server.running import connected, running
from tests.kits.servers.bookkeeper import BookKeeperCluster

pytestmark = pytest.mark.needs("bookkeeper")


def test_logs_in_bookkeeper_are_made_written_read_and_fenced(
    bookkeeper: BookKeeperCluster,
) -> None:
    commands = Commands(f"--bookkeeper={bookkeeper.address}")
    made = commands.json("dlog", "create", "audit")
    assert (made["state"], made["ledgers"]) == ("open", [])
    first = commands.append("audit", "in", "höher")
    commands.append("audit", "out")
    assert commands.messages("audit") == ["in", "höher", "out"]
    assert commands.messages("audit", "--from", first[1]) == ["höher", "out"]
    (fenced,) = commands.json("dlog", "fence", "audit")
    assert fenced["interruption_ms"] >= fenced["fence_ms"] >= 0

    ledgers = [each["ledger"] for each in commands.json("dlog", "info", "audit")["ledgers"]]
    listed = {row["ledger"]: row for row in commands.json("ledger", "list", "--count=9999")}
    assert {listed[ledger]["state"] for ledger in ledgers} == {"closed"}
    shown = commands.json("ledger", "show", str(ledgers[0]))
    assert (shown["last_entry"], len(shown["segments"][0]["bookies"])) == (0, 3)
    assert commands.json("ledger", "recover", str(ledgers[0])) == shown

    largest = "x" * StreamLimits().stored_bytes_max
    (at,) = commands.append("audit", largest)
    assert commands.messages("audit", "--from", at) == [largest]

    commands.run("dlog", "read", "nothing", status=1, expect="log 'nothing'")
    commands.run("ledger", "show", "999999999", status=1, expect="no ledger 999999999")


def test_logs_on_ledgers_below_another_chroot_are_others(bookkeeper: BookKeeperCluster) -> None:
    here = Commands(f"--bookkeeper={bookkeeper.address}")
    here.run("dlog", "create", "here")
    hosts, _, chroot = bookkeeper.address.partition("/")
    client = KazooClient(hosts)
    client.start()
    try:
        layout, _ = client.get(f"/{chroot}/LAYOUT")
        client.create("/bk2/ledgers/LAYOUT", layout, makepath=True)
    finally:
        client.stop()
        client.close()
    there = Commands(f"--bookkeeper={hosts}/bk2/ledgers")
    as_before = Commands(*there.flags, f"--records={hosts}")  # where release 0.1.0 put them
    as_before.run("dlog", "create", "before")
    assert "before" in [row["log"] for row in as_before.json("dlog", "list")]
    there.run("dlog", "create", "there")
    assert there.json("dlog", "list") == [{"log": "there"}]
    listed = [row["log"] for row in here.json("dlog", "list")]
    assert "here" in listed
    assert "there" not in listed


def test_a_ledger_with_a_password_is_recovered_by_whoever_gives_it(
    bookkeeper: BookKeeperCluster,
) -> None:
    async def write() -> int:
        with real_environment() as environment:
            client = await connect_bookkeeper(bookkeeper.address, environment)
            writer = await client.create(LedgerConfig(password=b"open sesame"))
            await writer.append(b"treasure")
            await client.close()
            return writer.ledger

    ledger = str(run(write()))
    commands = Commands(f"--bookkeeper={bookkeeper.address}")
    commands.run("ledger", "recover", ledger, status=1, expect="give it by --password")
    shown = commands.json("ledger", "recover", ledger, "--password=open sesame")
    assert (shown["state"], shown["last_entry"]) == ("closed", 0)


def test_bookies_are_reached_over_tls_and_copies_spread_over_racks(
    bookkeeper: BookKeeperCluster,
) -> None:
    # Three of four are in one rack: the fourth, alone in the other, has a copy of everything.
    *together, alone = [each.id for each in bookkeeper.bookies]
    racks = ",".join([*(f"{each}=r1" for each in together), f"{alone}=r2"])
    flags = (
        f"--bookkeeper={bookkeeper.address}",
        f"--set=dlog.bookkeeper_authorities={bookkeeper.tls.authorities}",
        f"--set=dlog.bookkeeper_racks={racks}",
        "--set=dlog.ensemble=2",
        "--set=dlog.write_quorum=2",
    )
    commands = Commands(*flags, f"--set=dlog.bookkeeper_certificate={bookkeeper.tls.certificate}")
    commands.run("dlog", "create", "spread")
    for number in range(4):
        commands.append("spread", str(number))
    for row in commands.json("dlog", "info", "spread")["ledgers"]:
        assert alone in commands.json("ledger", "show", str(row["ledger"]))["ensemble"]
    assert commands.messages("spread") == ["0", "1", "2", "3"]

    commands.run("dlog", "create", "refused")
    stranger = Commands(*flags, "--set=dlog.timeout_ms=500")
    stranger.run("dlog", "append", "refused", "x", status=1, expect="took nothing for 500 ms")


def test_a_logstore_is_kept_in_bookkeeper(bookkeeper: BookKeeperCluster, tmp_path: Path) -> None:
    command = (
        "standalone",
        f"--data={tmp_path / 'data'}",
        f"--port-base={consecutive_ports(PORTS)}",
        "--set=dlog.store=bookkeeper",
        f"--set=dlog.bookkeeper={bookkeeper.address}",
    )
    sent = [f"line {number}" for number in range(1_000)]
    with running(*command, folder=tmp_path) as parts, connected(parts) as client:
        client.create_project("p")
        client.create_logstore("p", "s", shard_count=1, log=LogKind.DLOG)
        with client.producer("p", "s") as producer:
            for line in sent:
                producer.send({"message": line})
        with client.reader("p", "s") as reader:
            assert [record.contents["message"] for record in reader] == sent
        service = parts["logservice"]
        commands = Commands(
            f"--connect={service['address']}",
            f"--config={service['config']}",
            *command[-2:],
        )
        (row,) = commands.json("dlog", "list")
        ledger = commands.json("dlog", "info", row["log"])["ledgers"][0]["ledger"]
        bookies = set(commands.json("ledger", "show", str(ledger))["ensemble"])
        assert bookies <= {each.id for each in bookkeeper.bookies}
