"""BookKeeper's own Java client beside ours, on the same bookies: each reads, fences and recovers
what the other wrote.
"""

import pytest

from raftwood.base.errors import PermissionDenied
from raftwood.dlog.bookkeeper.connection import BookKeeperSettings
from raftwood.dlog.errors import Fenced, NoSuchLedger
from raftwood.dlog.ledgers.metadata import Digest, LedgerConfig, LedgerState
from raftwood.net.tls import ClientTls
from tests.kits.dlog.java_ledgers import JavaFailed, JavaLedgers
from tests.kits.running import run
from tests.kits.servers.bookkeeper import BookKeeperCluster
from tests.kits.servers.bookkeeper_clients import opened

pytestmark = pytest.mark.needs("bookkeeper")

PASSWORD = "secret"
NAMES = {Digest.CRC32C: "CRC32C", Digest.CRC32: "CRC32", Digest.MAC: "MAC", Digest.DUMMY: "DUMMY"}
WRITTEN = [f"ours-{number}" for number in range(20)]


def settings(protocol: str) -> BookKeeperSettings:
    return BookKeeperSettings(use_v3_alone=protocol == "v3")


@pytest.mark.parametrize("protocol", ["v2", "v3"])
@pytest.mark.parametrize("digest", list(Digest))
def test_java_reads_what_we_wrote(
    bookkeeper: BookKeeperCluster, java: JavaLedgers, digest: Digest, protocol: str
) -> None:
    async def main() -> int:
        config = LedgerConfig(digest=digest, password=PASSWORD.encode())
        async with opened(bookkeeper, bookies=settings(protocol)) as client:
            writer = await client.create(config, properties={"made by": b"Raftwood"})
            adds = [writer.append(each.encode()) for each in WRITTEN]
            assert [await each for each in adds] == list(range(20))
            await writer.close()
            return writer.ledger

    ledger = run(main())
    read = java.read(protocol, "read", ledger, digest=NAMES[digest], password=PASSWORD)
    assert read.entries == WRITTEN
    assert (read.last, read.length_bytes) == (19, sum(map(len, WRITTEN)))
    with pytest.raises(JavaFailed, match="BKUnauthorizedAccessException"):
        java.read(protocol, "read", ledger, digest=NAMES[digest], password="another")


@pytest.mark.parametrize("protocol", ["v2", "v3"])
@pytest.mark.parametrize("digest", list(Digest))
def test_we_read_what_java_wrote(
    bookkeeper: BookKeeperCluster, java: JavaLedgers, digest: Digest, protocol: str
) -> None:
    ledger = int(java.tell(protocol, "create", NAMES[digest], PASSWORD, 4, 3, 2))
    java.tell(protocol, "add", ledger, 20, "java")
    java.tell(protocol, "close", ledger)

    async def main() -> None:
        async with opened(bookkeeper, bookies=settings(protocol)) as client:
            with pytest.raises(PermissionDenied):
                await client.open(ledger, recover=False, password=b"another")
            reader = await client.open(ledger, recover=False, password=PASSWORD.encode())
            assert reader.is_closed
            entries = await reader.read(first=0, last=reader.last_confirmed)
            assert [bytes(each.data) for each in entries] == [
                f"java-{number}".encode() for number in range(20)
            ]
            info = await client.info(ledger)
            assert info.config.digest is digest
            assert info.properties == {"made by": b"Java"}
            assert ledger in [each async for each in client.ledgers(first=ledger)]

    run(main())


@pytest.mark.parametrize("protocol", ["v2", "v3"])
def test_we_recover_a_ledger_whose_java_writer_lives_and_fence_it(
    bookkeeper: BookKeeperCluster, java: JavaLedgers, protocol: str
) -> None:
    ledger = int(java.tell(protocol, "create", "CRC32C", "", 3, 3, 2))
    java.tell(protocol, "add", ledger, 30, "java")

    async def main() -> None:
        async with opened(bookkeeper, bookies=settings(protocol)) as client:
            reader = await client.open(ledger, recover=True)
            assert reader.is_closed
            assert reader.last_confirmed == 29
            entries = await reader.read(first=0, last=29)
            assert [bytes(each.data) for each in entries] == [
                f"java-{number}".encode() for number in range(30)
            ]

    run(main())
    with pytest.raises(JavaFailed, match="BKLedgerFencedException"):
        java.tell(protocol, "add", ledger, 1, "late")
    read = java.read(protocol, "read", ledger, digest="CRC32C", password="")
    assert (read.last, read.length_bytes) == (29, 10 * 6 + 20 * 7)
    assert java.tell(protocol, "state", ledger).startswith("CLOSED")


@pytest.mark.parametrize("protocol", ["v2", "v3"])
def test_java_recovers_a_ledger_whose_writer_of_ours_lives_and_fences_it(
    bookkeeper: BookKeeperCluster, java: JavaLedgers, protocol: str
) -> None:
    async def main() -> None:
        async with opened(bookkeeper, bookies=settings(protocol)) as client:
            writer = await client.create(LedgerConfig())
            for each in WRITTEN:
                await writer.append(each.encode())
            read = java.read(protocol, "read", writer.ledger, digest="CRC32C", password="")
            assert read.entries == WRITTEN
            with pytest.raises(Fenced):
                await writer.append(b"late")
            with pytest.raises(Fenced):
                await writer.close()
            info = await client.info(writer.ledger)
            assert info.state is LedgerState.CLOSED
            assert (info.last_entry, info.length_bytes) == (19, sum(map(len, WRITTEN)))

    run(main())


@pytest.mark.parametrize("digest", list(Digest))
def test_java_recovers_what_a_writer_of_ours_left_behind_when_it_crashed(
    bookkeeper: BookKeeperCluster, java: JavaLedgers, digest: Digest
) -> None:
    async def main() -> tuple[int, int]:
        config = LedgerConfig(digest=digest, password=PASSWORD.encode())
        async with opened(bookkeeper) as client:
            writer = await client.create(config)
            adds = [writer.append(each.encode()) for each in WRITTEN]
            await adds[4]
            await writer.abandon()
            acked = sum(each.exception() is None for each in adds)
            return writer.ledger, acked

    ledger, acked = run(main())
    read = java.read("v3", "read", ledger, digest=NAMES[digest], password=PASSWORD)
    assert acked >= 5
    assert read.entries == WRITTEN[: read.last + 1]
    assert len(read.entries) >= acked
    assert java.tell("v3", "state", ledger).startswith("CLOSED")


def test_we_recover_what_java_writers_left_behind_when_they_were_killed(
    bookkeeper: BookKeeperCluster,
) -> None:
    ledgers: dict[int, Digest] = {}
    with JavaLedgers(bookkeeper.address) as doomed:
        for digest, name in NAMES.items():
            ledger = int(doomed.tell("v2", "create", name, PASSWORD, 4, 3, 2))
            doomed.tell("v2", "add", ledger, 10, "java")
            ledgers[ledger] = digest

    async def main() -> None:
        async with opened(bookkeeper) as client:
            for ledger, digest in ledgers.items():
                assert (await client.info(ledger)).state is LedgerState.OPEN
                reader = await client.open(ledger, recover=True, password=PASSWORD.encode())
                entries = await reader.read(first=0, last=reader.last_confirmed)
                assert [bytes(each.data) for each in entries] == [
                    f"java-{number}".encode() for number in range(10)
                ]
                info = await client.info(ledger)
                assert (info.state, info.last_entry) == (LedgerState.CLOSED, 9)
                assert info.config.digest is digest

    run(main())


def test_an_open_ledger_is_followed_both_ways(
    bookkeeper: BookKeeperCluster, java: JavaLedgers
) -> None:
    async def main() -> None:
        async with opened(bookkeeper) as client:
            writer = await client.create(LedgerConfig())
            for each in WRITTEN:
                await writer.append(each.encode())
            peeked = java.read("v3", "peek", writer.ledger, digest="CRC32C", password="")
            assert peeked.entries == WRITTEN[: peeked.last + 1]
            assert peeked.last >= 18  # it asks for what entries carry, and not for more
            await writer.close()

            ledger = int(java.tell("v3", "create", "CRC32C", "", 3, 3, 2))
            java.tell("v3", "add", ledger, 3, "java")
            reader = await client.open(ledger, recover=False)
            last, is_closed = await reader.wait(after=0, timeout_ms=5000)
            assert (last >= 1, is_closed) == (True, False)
            java.tell("v3", "close", ledger)
            assert await reader.wait(after=2, timeout_ms=5000) == (2, True)
            await client.delete(ledger)
            with pytest.raises(NoSuchLedger):
                await client.info(ledger)
            with pytest.raises(JavaFailed, match="NoSuchLedger"):
                java.read("v3", "read", ledger, digest="CRC32C", password="")

    run(main())


@pytest.mark.parametrize("protocol", ["v2", "v3"])
def test_the_shell_reads_what_we_wrote_over_tls(
    bookkeeper: BookKeeperCluster, protocol: str
) -> None:
    async def main() -> int:
        tls = ClientTls(bookkeeper.tls)
        async with opened(bookkeeper, bookies=settings(protocol), tls=tls) as client:
            writer = await client.create(LedgerConfig())
            for each in WRITTEN:
                await writer.append(each.encode())
            await writer.close()
            reader = await client.open(writer.ledger, recover=True)
            assert len(await reader.read(first=0, last=19)) == 20
            return writer.ledger

    said = bookkeeper.shell("readledger", "-msg", "-ledgerid", str(run(main())))
    assert [line for line in said.splitlines() if line.startswith("ours-")] == WRITTEN
