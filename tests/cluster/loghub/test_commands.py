"""LogHub from nothing to `tail -f`: a store, a gateway and commands."""

import json
import os
import signal
import subprocess
from pathlib import Path

from tests.kits.processes import INTERRUPTIBLE, RAFTWOOD, RealProcess
from tests.kits.raft.stores import WAIT, Stores

ALONE = """
[hakeeper]
tick_ms = 100
heartbeat_ms = 100
log_shards = 1
log_replicas = 1
hakeeper_replicas = 1

[loghub]
log_replicas = 1
"""
SERVICE = ("logservice", "start")


def test_loghub_is_used_from_the_command_line(tmp_path: Path) -> None:
    with Stores(tmp_path, first=1, more=1, extra=ALONE, service=SERVICE) as stores:
        stores.start(1)
        stores.run("cluster", "status", *WAIT)
        with stores.config.open("a") as settings:
            # The second address is no store's.
            settings.write(f'[gateway]\nlisten = "{stores.addresses[2]}"\nhttp_listen = ""\n')
        command = (*RAFTWOOD, "gateway", "start", f"--config={stores.config}")
        gateway = RealProcess("gateway", tmp_path, command)
        try:
            gateway.start()
            keys(stores)
            records(stores)
            assert gateway.stop() == 0
        finally:
            gateway.discard()


def keys(stores: Stores) -> None:
    """A key that may do all goes to the file; others come and go."""
    made = stores.run("key", "create", "*=admin", expect="[loghub_client]")
    with stores.config.open("a") as settings:
        settings.write(made)
    assert f'gateways = ["{stores.addresses[2]}"]' in made
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


def records(stores: Stores) -> None:
    stores.run("project", "create", "shop", expect="shop")
    stores.run("logstore", "create", "shop/orders", "--shards=1", expect="ttl days")
    lines = "".join(f'{{"user":"{number % 20}","n":{number}}}\n' for number in range(1_000))
    put = ("produce", "shop/orders", "--input=json", "--key=user")
    stores.run(*put, lines=lines, expect="1000")

    command = (*INTERRUPTIBLE, "tail", "shop/orders", "-f", "-n1", "--fields=n")
    environment = os.environ | {"RAFTWOOD_CONFIG": str(stores.config)}
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
        assert following.wait(60) == 130

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
