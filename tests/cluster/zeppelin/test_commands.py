"""Keys and values from the command line, on the node of a `raftwood standalone`."""

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from tests.kits.dlog.command_kit import Commands
from tests.kits.server.running import redis_of


@pytest.fixture
def kv(parts: dict[str, Any], tmp_path: Path) -> Commands:
    part = parts["kv"]
    return as_user(tmp_path / "default.toml", part["password"], f"{part['host']}:{part['port']}")


def as_user(file: Path, password: str, address: str) -> Commands:
    file.write_text(f'zeppelin_client = {{addresses = ["{address}"], password = "{password}"}}')
    return Commands(f"--config={file}")


def test_keys_are_set_shown_scanned_and_deleted(kv: Commands) -> None:
    kv.run("kv", "set", "greeting", "hello")
    (row,) = kv.json("kv", "get", "greeting")
    assert row == {"key": "greeting", "value": "hello", "ttl_ms": None}
    kv.run("kv", "set", "number", "-5", "--ttl=1h")
    (row,) = kv.json("kv", "get", "number")
    assert row["value"] == "-5"
    assert 3_500_000 < row["ttl_ms"] <= 3_600_000
    kv.run("kv", "set", "greeting", "x", "--if-absent", status=1, expect="has a value: not set")
    kv.run("kv", "set", "nothing", "x", "--if-present", status=1, expect="has no value: not set")
    kv.run("kv", "get", "greeting", "nothing", status=1, expect="there is no key 'nothing'")
    for number in range(30):
        kv.run("kv", "set", f"{{tag}}:{number}", f"value {number}")
    assert len(kv.run("kv", "scan").splitlines()) == 32
    assert len(kv.run("kv", "scan", "--count=7").splitlines()) == 7
    shown = kv.run("kv", "scan", "--match={tag}:1?", "--values", "--format=json").splitlines()
    found = {row["key"]: row["value"] for row in map(json.loads, shown)}
    assert found == {f"{{tag}}:{number}": f"value {number}" for number in range(10, 20)}
    assert kv.json("kv", "del", "greeting", "number", "nothing") == [{"deleted": 2}]
    assert kv.json("kv", "del", *found) == [{"deleted": 10}]


def test_what_cannot_be_is_refused(kv: Commands) -> None:
    kv.run("kv", "set", "a", "b", "--ttl=soon", status=2, expect="--ttl 'soon'")
    kv.run("kv", "set", "a", "b", "--if-absent", "--if-present", status=2, expect="not both")
    kv.run("kv", "scan", "--count=0", status=2, expect="--count 0 shows nothing")
    kv.run("kv", "get", status=2, expect="name a key")
    kv.run("kv", "del", status=2, expect="name a key")
    Commands().run("kv", "get", "a", status=2, expect="zeppelin_client.password is not set")
    kv.run("kv", "get", "a", "--user=nobody", status=1, expect="nobody")


def test_an_operators_table_is_used_at_once_by_its_users(
    operator: Commands, parts: dict[str, Any], tmp_path: Path
) -> None:
    section = operator.run("kv", "table", "create", "carts", "--replicas=1", "--format=toml")
    (tmp_path / "client.toml").write_text(section)
    carts = Commands(f"--config={tmp_path / 'client.toml'}")
    carts.run("kv", "set", "anna", "3")
    assert tomllib.loads(section)["zeppelin_client"]["user"] == "carts"
    refused = ("kv", "table", "create", "more", "--replicas=3")
    operator.run(*refused, status=1, expect="3 replicas need as many nodes")

    (added,) = operator.json("kv", "user", "add", "reader", "--table=carts", "--read-only")
    reader = as_user(tmp_path / "reader.toml", added["password"], added["addresses"][0])
    assert reader.json("kv", "get", "anna", "--user=reader")[0]["value"] == "3"
    reader.run("kv", "set", "anna", "4", "--user=reader", status=1, expect="no permissions")
    operator.run("kv", "user", "password", "reader")
    reader.run("kv", "get", "anna", "--user=reader", status=1, expect="reader")

    assert operator.run("kv", "status").startswith("nothing is wrong")
    assert [row["table"] for row in operator.json("kv", "table", "list")] == ["carts", "default"]
    (node,) = operator.json("kv", "node", "list")
    assert (node["state"], node["masters"]) == ("up", 20)
    seen = operator.json("kv", "node", "show", node["node"], "--table=carts")
    assert (seen["node"], seen["problem"], len(seen["copies"])) == (node["node"], "", 16)
    *others, written = sorted(each["last_sequence"] for each in seen["copies"])
    assert {written - 1} == {*others}
    assert "master" in operator.run("kv", "node", "show", node["node"])
    operator.run("kv", "node", "show", "other", status=1, expect="`raftwood kv node list`")
    with redis_of(parts) as redis:
        assert redis.get("anna") is None
    operator.run("kv", "table", "drop", "carts", "--yes")
    carts.run("kv", "get", "anna", status=1)
