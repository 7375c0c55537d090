"""Real stores from the command line: run, used, changed and stopped as an operator does it."""

import json
import signal
import socket
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme

from tests.kits.ports import LOCAL, free_ports
from tests.kits.raft.stores import WAIT, Stores
from tests.kits.server.running import ask


@pytest.fixture(scope="module")
def stores(module_folder: Path) -> Iterator[Stores]:
    """Three, which speak TLS with one another and with clients."""
    folder = module_folder
    issue_certificate(folder)
    tls = f"""
[tls]
certificate = "{folder}/store.pem"
key = "{folder}/key.pem"
authorities = "{folder}/authority.pem"
"""
    with Stores(folder, extra=tls) as stores:
        stores.start(1, 2, 3)
        stores.leader()
        yield stores
        assert [stores.processes[store].stop() for store in (1, 2, 3)] == [0, 0, 0]


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


def test_a_leader_that_is_told_to_stop_ends_with_status_0_and_others_go_on(
    stores: Stores,
) -> None:
    leader = stores.leader()
    stores.meta("put", "before", "")
    assert stores.processes[leader].stop() == 0
    stores.meta("put", "during", "")
    assert stores.leader() != leader
    stores.start(leader)
    stores.meta("get", "before")


def test_a_secret_shows_neither_in_a_log_nor_in_a_command_line(stores: Stores) -> None:
    secrets = tomllib.loads(stores.config.read_text())["secrets"]
    stores.config.chmod(0o644)
    assert stores.processes[2].stop() == 0
    stores.start(2)
    stores.config.chmod(0o600)
    assert "others can read the secrets" in stores.log(2)
    for store in (1, 2, 3):
        pid = stores.processes[store].pid
        shown = stores.log(store) + Path(f"/proc/{pid}/cmdline").read_text()
        assert not any(secret in shown for secret in secrets.values())


def test_stores_take_a_certificate_of_another_authority_when_they_are_told_to(
    stores: Stores,
) -> None:
    stores.meta("put", "tls", "sealed")
    plain = ("--set", "tls.certificate=", "--set", "tls.authorities=")
    stores.meta("get", "tls", *plain, status=1)
    # Renewed by another authority, which nobody trusted before.
    issue_certificate(stores.folder)
    stores.meta("get", "tls", status=1)
    for store in (1, 2, 3):
        stores.processes[store].signal(signal.SIGHUP)
    stores.run("raft", "status", *WAIT)
    assert "sealed" in stores.meta("get", "tls")


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
            assert stores.processes[1].stop() == 0
            assert "uvicorn" not in stores.log(1)
            assert token not in stores.log(1)


def test_a_store_that_waits_for_the_others_is_alive_and_not_ready(tmp_path: Path) -> None:
    address = f"{LOCAL}:{free_ports(1)[0]}"
    with Stores(tmp_path, more=0, extra=f'[http]\nlisten = "{address}"') as stores:
        stores.start(1)
        assert ask(address, "/livez") == (200, "ok\n")
        assert ask(address, "/readyz") == (503, "service: metastore: no leader is known\n")
        assert ask(address, "/metrics", token="")[0] == 401


def issue_certificate(folder: Path) -> None:
    authority = trustme.CA()
    certificate = authority.issue_cert("127.0.0.1")
    certificate.cert_chain_pems[0].write_to_path(str(folder / "store.pem"))
    certificate.private_key_pem.write_to_path(str(folder / "key.pem"))
    authority.cert_pem.write_to_path(str(folder / "authority.pem"))
