"""Folders and frames of earlier releases: the present code reads them, and finds what they hold."""

import json
import os
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from pyarrow import parquet

from raftwood.base.configuration import compose
from raftwood.base.environment import Environment
from raftwood.clogs.client.spool import Spool
from raftwood.clogs.tail.checkpoints import STATE_SETTINGS, FileCheckpoints
from raftwood.disk.inspection import check_store
from raftwood.disk.real_environment import real_environment
from raftwood.disk.rocksdb import RocksFolders
from raftwood.disk.store import Store
from raftwood.dlog.bookie.bookie import Bookie
from raftwood.dlog.ledgers.digests import EntryDigest
from raftwood.dlog.ledgers.metadata import BookieId, Digest
from raftwood.dlog.log.entries import decode_entry
from raftwood.loghub.consumer.leases import signature
from raftwood.loghub.consumer.sql_store import SqlLeaseStore
from raftwood.logservice.client.backup import check_backup
from raftwood.logservice.hakeeper import commands
from raftwood.logservice.hakeeper.state_machine import HaKeeperStateMachine
from raftwood.logservice.log_rules import LogShardState
from raftwood.logservice.log_state_machine import LogStateMachine
from raftwood.logservice.records import HEAD_BYTES
from raftwood.logservice.server.shard_service import is_user_entry
from raftwood.metastore import queries
from raftwood.metastore.file_store import FileMetaStore
from raftwood.metastore.state_machine import MetaStateMachine
from raftwood.net.frames import FrameDecoder, encode_frame
from raftwood.pipeline.archive.files import ArrowFiles
from raftwood.pipeline.archive.manifest import ArchiveLog
from raftwood.raft.node_host import NodeHost
from raftwood.server.receiver import lines_of
from raftwood.server.settings import Settings
from raftwood.zeppelin.backup_format import BackupFolder, pages_in
from raftwood.zeppelin.node.engine_folders import ENGINES_FOLDER
from raftwood.zeppelin.node.store import NodeStore
from raftwood.zeppelin.restore import verify
from tests.kits.fuzz import TARGETS
from tests.kits.raft.host_cluster import NETWORK
from tests.kits.releases.http_messages import decoded_http
from tests.kits.releases.packing import unpack
from tests.kits.releases.plain import plain, says_all
from tests.kits.releases.resp_streams import decoded_answers, decoded_requests
from tests.kits.releases.rpc_payloads import decoded_frame
from tests.kits.releases.seed_decoders import DECODERS
from tests.kits.running import run

FIXTURES = Path(__file__).parents[1] / "fixtures"
RELEASES = sorted(each.parent for each in FIXTURES.glob("*/frames"))
FRAMES = sorted(each for release in RELEASES for each in (release / "frames").iterdir())


GROWN = {("Zeppelin's meta server", "query"): ("raftwood.zeppelin.meta.queries", "decode_query")}
"""What is written with more fields than in 0.1.0, whose own code has to pass over them."""


class Role:
    """One role's folder of a release, unpacked, and what it holds."""

    def __init__(self, release: Path, name: str, folder: Path) -> None:
        self._release = release
        self.folder = folder
        unpack(release / name / "data.tar.xz", folder)
        self.expected = self.of(name)

    def of(self, name: str) -> Any:
        file = self._release / name / "expected.json"
        return json.loads(file.read_text()) if file.exists() else None

    def path(self, name: str) -> str:
        return str(self.folder / name)


@pytest.fixture(params=RELEASES, ids=lambda each: each.name)
def role(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[str], Role]:
    return lambda name: Role(request.param, name, tmp_path)


def in_environment(work: Callable[[Environment], Awaitable[None]]) -> None:
    async def main() -> None:
        with real_environment() as environment:
            await work(environment)

    run(main())


def name_of(file: Path) -> str:
    return f"{file.parent.parent.name} {file.stem}"


@pytest.mark.parametrize("file", FRAMES, ids=name_of)
def test_frames_of_a_release_mean_the_same(file: Path) -> None:
    items = json.loads(file.read_text())
    assert items
    for item in items:
        data = bytes.fromhex(item["hex"])
        found = decoded(item, data)
        about = {key: item.get(key) for key in ("protocol", "service", "method", "kind")}
        assert says_all(found, item["decoded"]), (about, found, item["decoded"])


def decoded(item: dict[str, Any], data: bytes) -> Any:
    if item["protocol"] == "rpc":
        ((kind, method, request, argument, payload),) = FrameDecoder().feed(data)
        again = encode_frame(
            kind, method=method, request_id=request, argument=argument, payload=payload
        )
        assert again == data
        return decoded_frame(data, item["service"], item["method"])
    if item["protocol"] == "resp":
        is_request = item["direction"] == "to server"
        return decoded_requests(data) if is_request else decoded_answers(data)
    if item["protocol"] == "sls":
        return decoded_http(data, item["secret"])
    decoder = DECODERS[item["protocol"]][item["kind"]]
    found = decoder.decode(data)
    if item["is_encoded_alike"]:
        assert decoder.encode is not None
        again = decoder.encode(found)
        if (reader := GROWN.get((item["protocol"], item["kind"]))) is not None:
            assert_release_reads_alike(reader, data, again)
        else:
            assert again == data, (item["protocol"], item["kind"])
    return plain(found)


def assert_release_reads_alike(reader: tuple[str, str], *encoded: bytes) -> None:
    module, function = reader
    program = (
        f"import sys; from {module} import {function};"
        f"a, b = map({function}, map(bytes.fromhex, sys.argv[1:])); assert a == b"
    )
    wheel = FIXTURES / "0.1.0/raftwood-0.1.0-py3-none-any.whl"
    subprocess.run(
        (sys.executable, "-c", program, *(each.hex() for each in encoded)),
        env={**os.environ, "PYTHONPATH": str(wheel)},
        cwd=wheel.parent,
        check=True,
    )


@pytest.mark.parametrize("release", RELEASES, ids=lambda each: each.name)
def test_every_parser_of_outside_bytes_has_frames_of_the_first_release(release: Path) -> None:
    """What a later release adds has none of an earlier one."""
    items = json.loads((release / "frames/encoded-seeds.json").read_text())
    covered = {item["protocol"] for item in items}
    assert covered <= set(TARGETS)
    if release == RELEASES[-1]:
        assert covered == set(DECODERS)


def test_a_log_store_has_its_logs_and_its_metastore(role: Callable[[str], Role]) -> None:
    kept = role("log-store")
    expected, path = kept.expected, kept.path("data/store")

    async def work(environment: Environment) -> None:
        report = await check_store(environment, path)
        assert report.is_intact, report.damages
        host = await NodeHost.open(
            environment, path, cluster=expected["cluster"], store=1, network=NETWORK
        )
        try:
            await check_groups(host, expected)
        finally:
            await host.close()

    in_environment(work)


async def check_groups(host: NodeHost, expected: Any) -> None:
    members = {1: "127.0.0.1:1"}
    groups, (log,) = expected["groups"], expected["logs"].values()
    for group, machine in (
        (groups["metastore"], MetaStateMachine),
        (groups["hakeeper"], HaKeeperStateMachine),
        (log["group"], LogStateMachine),
    ):
        await host.start_group(group, machine, members=members)
        assert host.status(group).snapshots

    asked = queries.encode_query(queries.RangeQuery("fixture/", "", None, 100))
    answer = await host.read(groups["metastore"], asked, timeout_ms=30_000)
    found = queries.decode_answer(answer, queries.RangeAnswer).range.entries
    pairs = [[each.key, each.value.decode(), each.version] for each in found]
    assert pairs == expected["metastore"]

    answer = await host.read(
        groups["hakeeper"], commands.encode_query(commands.DescribeCluster()), timeout_ms=30_000
    )
    cluster = commands.decode_answer(answer, commands.ClusterView)
    shards = {each.name: each.shard for each in cluster.shards}
    assert shards.items() >= {"orders": log["group"], **groups}.items()

    state: LogShardState = await host.read(log["group"], lambda state: state, timeout_ms=30_000)
    assert state.truncated == log["truncated_lsn"]
    first = state.lsns.index_from(log["records"][0][0])
    entries, _ = await host.read_log(log["group"], first)
    records = [
        [state.lsns.lsn_of(each.index), bytes(each.payload[HEAD_BYTES:])]
        for each in entries
        if is_user_entry(each)
    ]
    assert records == [[lsn, data.encode()] for lsn, data in log["records"]]


def test_bookies_have_the_messages_of_a_log(role: Callable[[str], Role]) -> None:
    kept = role("bookies")
    acked = {at: data.encode() for at, data in kept.expected["logs"]["ledgers"]}
    ledgers = {int(at.partition(":")[0]) for at in acked}

    async def work(environment: Environment) -> None:
        for number, name in enumerate(kept.expected["bookies"], 1):
            bookie = await Bookie.open(
                environment,
                kept.path(f"data/bookie-{number}"),
                cluster=kept.expected["cluster"],
                id_=BookieId(name),
            )
            try:
                found = {
                    at: data for ledger in ledgers async for at, data in messages(bookie, ledger)
                }
            finally:
                await bookie.close()
            assert found == acked, name

    in_environment(work)


async def messages(bookie: Bookie, ledger: int) -> AsyncIterator[tuple[str, bytes]]:
    digest = EntryDigest(ledger, Digest.CRC32C, b"")
    for number in range(bookie.entry_count(ledger)):
        unpacked = digest.unpack(await bookie.read(ledger, number), entry=number)
        entry = decode_entry(unpacked.data)
        for place in range(len(entry)):
            yield f"{ledger}:{number}:{place}", bytes(entry.message(place).payload)


def test_a_zeppelin_node_has_its_keys_and_their_ends(role: Callable[[str], Role]) -> None:
    kept = role("zeppelin-node")
    path = kept.path("data/kv")

    async def work(environment: Environment) -> None:
        engines = RocksFolders(
            f"{path}/{ENGINES_FOLDER}", cache_bytes=1 << 20, write_buffer_bytes=1 << 20
        )
        store = await NodeStore.open(environment, path, engines, cluster=kept.expected["cluster"])
        try:
            found: dict[str, list[Any]] = {}
            now_ms = environment.clock.wall_ns() // 1_000_000
            for partition, table in store.held().items():
                opened = await store.partition(partition)
                found.setdefault(table, []).extend(
                    [plain(key), plain(value.data), value.expires_ms]
                    for key, value in opened.scan(after=None, now_ms=now_ms)
                )
            assert sorted(found["default"]) == sorted(kept.expected["tables"]["default"])
            assert found["sessions"] == []
        finally:
            await store.close()

    in_environment(work)


def test_a_shipper_knows_how_far_its_files_are_stored(role: Callable[[str], Role]) -> None:
    kept = role("shipper")

    async def work(environment: Environment) -> None:
        store = await Store.open(
            environment, kept.path("ship-state"), cluster="ship", store=1, settings=STATE_SETTINGS
        )
        try:
            checkpoints = FileCheckpoints(store.log)
            assert not checkpoints.is_new
            found = {each.name: each for each in checkpoints.load().values()}
        finally:
            await store.close()
        assert found.keys() == kept.expected["files"].keys()
        for name, file in kept.expected["files"].items():
            assert found[name].offset == file["stored_bytes"]
            ends = [found[name].offset, *(each.end for each in found[name].intents)]
            assert ends[-1] == file["end"]

    in_environment(work)


def test_a_spool_has_the_lines_that_were_not_sent(role: Callable[[str], Role]) -> None:
    kept = role("shipper")

    async def work(environment: Environment) -> None:
        spool = await Spool.open(environment, kept.path("spool/0"), bytes_max=1 << 20)
        try:
            found: dict[str, list[str]] = {}
            for entry in spool.recover():
                batch = await spool.load(entry)
                lines = lines_of(batch.message(system=0, place="")).decode().splitlines()
                found.setdefault(batch.name, []).extend(lines)
        finally:
            await spool.close()
        assert found == kept.expected["spool"]

    in_environment(work)


def test_a_lease_table_has_its_leases(role: Callable[[str], Role]) -> None:
    kept = role("leases")
    expected = kept.expected

    async def work(environment: Environment) -> None:
        store = SqlLeaseStore(
            environment,
            f"sqlite:///{kept.path('leases/leases.sqlite')}",
            group=expected["group"],
            signature=signature(expected["project"], expected["logstore"]),
        )
        await store.open()
        try:
            found = await store.scan(0)
        finally:
            await store.close()
        assert says_all(plain(found.leases), expected["leases"])
        assert says_all(plain(found.workers), expected["workers"])

    in_environment(work)


def test_an_archive_has_its_commits_and_records(role: Callable[[str], Role]) -> None:
    kept = role("archive")
    expected = kept.expected
    archive = ArchiveLog(
        ArrowFiles(kept.path("archive")),
        project=expected["project"],
        logstore=expected["logstore"],
    )
    manifest = archive.manifest()
    assert len(manifest.commits) == 2
    assert manifest.rows == expected["rows"]
    ends = {str(shard): str(end) for shard, end in manifest.archived().items()}
    assert ends == expected["archived"]
    found = [
        message
        for commit in manifest.commits
        for file in commit.files
        for message in messages_in(kept.path(f"archive/{file.path}"))
    ]
    assert sorted(found) == expected["messages"]


def messages_in(file: str) -> Iterator[str]:
    table = parquet.read_table(file)
    for contents in table.column("contents").to_pylist():
        yield dict(contents)["message"]


def test_a_log_backup_is_whole(role: Callable[[str], Role]) -> None:
    kept = role("log-backup")

    async def work(environment: Environment) -> None:
        manifest = await check_backup(environment.files, kept.path("log-backup"))
        assert (manifest.records, manifest.first_lsn, manifest.next_lsn) == (
            kept.expected["records"],
            kept.expected["first_lsn"],
            kept.expected["next_lsn"],
        )

    in_environment(work)


def test_a_backup_of_a_table_has_its_keys(role: Callable[[str], Role]) -> None:
    kept = role("zeppelin-backup")
    folder = BackupFolder(kept.path("kv-backup"))

    async def work(_: Environment) -> None:
        manifest = await verify(folder)
        found: dict[bytes, bytes] = {}
        for file in manifest.files:
            for page in pages_in(await folder.read(file.name), file.name):
                found |= dict(zip(page.keys(), page.values(), strict=True))
        (table,) = kept.of("zeppelin-node")["tables"].values()
        assert plain(found) == {key: value for key, value, _ in table}

    in_environment(work)


def test_a_metastore_in_a_folder_has_its_keys(role: Callable[[str], Role]) -> None:
    kept = role("metastore")

    async def work(environment: Environment) -> None:
        store = await FileMetaStore.open(environment, kept.path("metastore"))
        try:
            found = (await store.range()).entries
            await store.keep_alive(kept.expected["lease"])
        finally:
            await store.close()
        pairs = [[each.key, plain(each.value), each.version] for each in found]
        assert pairs == kept.expected["pairs"]

    in_environment(work)


def test_settings_of_a_release_are_taken(role: Callable[[str], Role]) -> None:
    file = Path(role("settings").path("data/standalone.toml"))
    settings = compose(Settings, data=file.read_bytes(), file=str(file)).settings
    assert (settings.cluster.name, settings.node.store_id) == ("standalone", 1)
