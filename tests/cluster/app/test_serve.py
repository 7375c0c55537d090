"""Real stores from the command line: run, used, changed and stopped as an operator does it."""

import asyncio
import json
import signal
import socket
import time
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme

from raftwood.app.connecting import connected_client
from raftwood.app.groups import METASTORE_GROUP
from raftwood.app.settings import Settings
from raftwood.base.configuration import load_configuration
from raftwood.base.seams import SetKey
from raftwood.disk.real_environment import real_environment
from raftwood.metastore.raft_store import RaftMetaStore
from tests.kits.raft.stores import Stores
from tests.kits.running import run


@pytest.fixture
def stores(tmp_path: Path) -> Iterator[Stores]:
    with Stores(tmp_path) as stores:
        stores.start(1, 2, 3)
        stores.leader()
        yield stores


def test_a_cluster_is_used_and_changed_from_the_command_line(stores: Stores) -> None:
    assert stores.meta("put", "a/x", "one").split() == ["version", "1"]
    assert stores.meta("cas", "a/x", "two", "--version", "1").split() == ["version", "2"]
    assert "no longer has version 1" in stores.meta("cas", "a/x", "3", "--version", "1", status=1)
    assert json.loads(stores.meta("get", "a/x", "--format", "json"))[0]["value"] == "two"
    assert "a/x" in stores.meta("list", "a/")
    assert stores.meta("watch", "--count", "1") == "2  a/x  two\n"
    stores.meta("delete", "a/x")
    assert json.loads(stores.meta("status", "--format", "json"))[0]["version"] == 3

    stores.start(4, joins=True)
    stores.run("raft", "add", "4", stores.addresses[4], expect="learner")
    stores.run("raft", "promote", "4")
    stores.run("raft", "transfer", "4")
    rows = {row["store"]: row for row in stores.rows("raft", "members")}
    assert [rows[store]["member"] for store in (1, 2, 3, 4)] == ["voter"] * 4
    assert rows[4]["leads"]
    assert [row["store"] for row in stores.rows("raft", "snapshot")] == [1, 2, 3, 4]
    # Through the leader alone: the other members' addresses are known to it as well.
    stores.run("raft", "remove", "4", "--connect", stores.addresses[4])
    assert {row["store"] for row in stores.rows("raft", "members")} == {1, 2, 3}
    assert 'raft_groups{store="2"} 1.0' in stores.run("raft", "metrics", "2")
    stores.run("raft", "remove", "4", status=2, expect="no member")
    assert stores.meta("put", "b", "after").split() == ["version", "4"]


def test_a_leader_that_is_told_to_stop_hands_over_and_ends_with_status_0(
    stores: Stores, tmp_path: Path
) -> None:
    leader = stores.leader()

    async def write_while_it_stops() -> float:
        settings = load_configuration(Settings, file=str(tmp_path / "cluster.toml")).settings
        with real_environment() as environment:
            async with connected_client(environment, settings, None) as client:
                meta = RaftMetaStore(client, METASTORE_GROUP)
                await meta.transact((), (SetKey("before", b""),))
                stores.processes[leader].terminate()
                began = last = time.perf_counter()
                longest = 0.0
                while last - began < 2.0:
                    await meta.transact((), (SetKey("during", b""),))
                    now = time.perf_counter()
                    longest, last = max(longest, now - last), now
                    await asyncio.sleep(0.002)
                return longest

    assert run(write_while_it_stops()) < 1.0
    assert stores.processes[leader].wait(timeout=30) == 0
    assert stores.leader() != leader
    stores.start(leader)
    stores.meta("get", "before")
    assert [stores.stop(store) for store in (1, 2, 3)] == [0, 0, 0]


def test_a_secret_shows_neither_in_a_log_nor_in_a_command_line(
    stores: Stores, tmp_path: Path
) -> None:
    secrets = tomllib.loads((tmp_path / "cluster.toml").read_text())["secrets"]
    (tmp_path / "cluster.toml").chmod(0o644)
    assert stores.stop(2) == 0
    stores.start(2)
    assert "others can read the secrets" in stores.log(2)
    for store, process in stores.processes.items():
        shown = stores.log(store) + Path(f"/proc/{process.pid}/cmdline").read_text()
        assert not any(secret in shown for secret in secrets.values())


def test_a_store_tells_its_health_and_metrics_over_http(tmp_path: Path) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{taken.getsockname()[1]}"
        with Stores(tmp_path, first=1, more=0, extra=f'[http]\nlisten = "{address}"') as stores:
            folder = ("--set", f"node.data_folder={tmp_path / 'store-1'}")
            stores.run("serve", *folder, status=1, expect=f"cannot listen on {address}")
            taken.close()
            stores.start(1)
            stores.leader()
            token = tomllib.loads((tmp_path / "cluster.toml").read_text())["secrets"]["metrics"]
            assert ask(address, "/livez") == (200, "ok\n")
            assert ask(address, "/readyz") == (200, "ok\n")
            assert ask(address, "/metrics", token="guessed")[0] == 401
            status, text = ask(address, "/metrics", token=token)
            assert status == 200
            assert 'raftwood_raft_groups{store="1"} 1.0' in text
            assert stores.stop(1) == 0
            assert "uvicorn" not in stores.log(1)
            assert token not in stores.log(1)


def test_a_store_that_waits_for_the_others_is_alive_and_not_ready(tmp_path: Path) -> None:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        address = f"127.0.0.1:{unused.getsockname()[1]}"
    with Stores(tmp_path, more=0, extra=f'[http]\nlisten = "{address}"') as stores:
        stores.start(1)
        assert ask(address, "/livez") == (200, "ok\n")
        assert ask(address, "/readyz") == (503, "service: metastore: no leader is known\n")
        assert ask(address, "/metrics", token="")[0] == 401


def test_stores_and_clients_speak_tls_where_certificates_are_given(tmp_path: Path) -> None:
    issue_certificate(tmp_path)
    tls = f"""
[tls]
certificate = "{tmp_path}/store.pem"
key = "{tmp_path}/key.pem"
authorities = "{tmp_path}/authority.pem"
"""
    with Stores(tmp_path, more=0, extra=tls) as stores:
        stores.start(1, 2, 3)
        stores.leader()
        stores.meta("put", "a", "sealed")
        assert "sealed" in stores.meta("get", "a")
        plain = ("--set", "tls.certificate=", "--set", "tls.authorities=")
        stores.meta("get", "a", *plain, status=1)
        # Renewed by another authority, which nobody trusted before.
        issue_certificate(tmp_path)
        stores.meta("get", "a", status=1)
        for process in stores.processes.values():
            process.send_signal(signal.SIGHUP)
        stores.run("raft", "status", "--wait-seconds", "30")
        assert "sealed" in stores.meta("get", "a")


def issue_certificate(folder: Path) -> None:
    authority = trustme.CA()
    certificate = authority.issue_cert("127.0.0.1")
    certificate.cert_chain_pems[0].write_to_path(str(folder / "store.pem"))
    certificate.private_key_pem.write_to_path(str(folder / "key.pem"))
    authority.cert_pem.write_to_path(str(folder / "authority.pem"))
