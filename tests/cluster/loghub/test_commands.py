"""LogHub from nothing to `tail -f`: stores, a gateway and commands, each a process."""

import json
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.kits.raft.stores import INTERRUPTIBLE, Stores

FAST = """
[hakeeper]
tick_ms = 100
heartbeat_ms = 100
log_shards = 1
"""
SERVICE = ("logservice", "start")


@contextmanager
def gateway(stores: Stores, folder: Path) -> Iterator[subprocess.Popen[str]]:
    file = folder / "cluster.toml"
    listen = stores.addresses[4]  # the fourth address is no store's
    with file.open("a") as settings:
        settings.write(f'[gateway]\nlisten = "{listen}"\nhttp_listen = ""\n')
    with (folder / "gateway.log").open("ab") as log:
        process = subprocess.Popen(
            (*RAFTWOOD, "gateway", "start", f"--config={file}"),
            stdout=subprocess.PIPE,
            stderr=log,
            text=True,
        )
    try:
        assert process.stdout is not None
        assert "serves on" in process.stdout.readline(), (folder / "gateway.log").read_text()
        yield process
    finally:
        process.kill()
        process.communicate()


def test_loghub_is_used_from_the_command_line(tmp_path: Path) -> None:
    with Stores(tmp_path, first=3, more=1, extra=FAST, service=SERVICE) as stores:
        stores.start(1, 2, 3)
        stores.run("cluster", "status", "--wait-seconds", "30")
        with gateway(stores, tmp_path) as process:
            keys(stores, tmp_path)
            records(stores, tmp_path)
            process.send_signal(signal.SIGTERM)
            assert process.wait(20) == 0


def keys(stores: Stores, folder: Path) -> None:
    """A key that may do all goes to the file; others come and go."""
    made = stores.run("key", "create", "*=admin", expect="[loghub_client]")
    with (folder / "cluster.toml").open("a") as settings:
        settings.write(made)
    assert f'gateways = ["{stores.addresses[4]}"]' in made
    (other,) = json.loads(
        stores.run("key", "create", "shop=reader", "--description", "old", "--format", "json")
    )
    listed = stores.rows("key", "list")
    assert {tuple(row["roles"].items()) for row in listed} == {
        (("*", "admin"),),
        (("shop", "reader"),),
    }
    assert other["secret"] not in json.dumps(listed)
    stores.run("key", "revoke", other["id"], expect=other["id"])


def records(stores: Stores, folder: Path) -> None:
    stores.run("project", "create", "shop", expect="shop")
    stores.run("logstore", "create", "shop/orders", "--shards=1", expect="ttl days")
    lines = "".join(f'{{"user":"{number % 20}","n":{number}}}\n' for number in range(1_000))
    put = ("produce", "shop/orders", "--input=json", "--key=user")
    stores.run(*put, lines=lines, expect="1000")

    command = (*INTERRUPTIBLE, "tail", "shop/orders", "-f", "-n1", "--fields=n")
    environment = os.environ | {"RAFTWOOD_CONFIG": str(folder / "cluster.toml")}
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as following:
        assert following.stdout is not None
        assert following.stdout.readline() == "999\n"
        changed = stores.rows("shard", "split", "shop/orders", "0")
        assert [row["status"] for row in changed] == ["readonly", "readwrite", "readwrite"]
        more = lines.replace('"n":', '"n":1')
        stores.run(*put, lines=more)
        seen = [following.stdout.readline() for _ in range(1_000)]
        assert sorted(seen) == sorted(f"1{number}\n" for number in range(1_000))
        following.send_signal(signal.SIGINT)
        assert following.wait(30) == 130

    shown = stores.run("tail", "shop/orders", "--from=begin", "--fields=user,n")
    found: dict[int, list[int]] = {}
    for line in shown.splitlines():
        user, number = map(int, line.split())
        found.setdefault(user, []).append(number)
    assert found == {
        user: [*range(user, 1_000, 20), *(int(f"1{number}") for number in range(user, 1_000, 20))]
        for user in range(20)
    }
    listed = stores.rows("shard", "list", "shop/orders")
    assert [(row["id"], row["parents"]) for row in listed] == [(0, []), (1, [0]), (2, [0])]
    assert all(row["appended_bytes"] for row in listed)
