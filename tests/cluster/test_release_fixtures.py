"""The folder of an earlier release's `raftwood standalone`, served by the present one."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from tests.kits.releases.packing import unpack
from tests.kits.releases.release_processes import PORT_BASE, WORK, access
from tests.kits.server.running import running

FIXTURES = Path(__file__).parents[1] / "fixtures"
RELEASES = sorted(each.parent for each in FIXTURES.glob("*/frames"))
ROLES = ("settings", "log-store", "bookies", "zeppelin-node")


def rows(*arguments: str, environment: dict[str, str]) -> list[dict[str, Any]]:
    done = subprocess.run(
        (sys.executable, "-m", "raftwood.cli", *arguments, "--format=json"),
        capture_output=True,
        text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)} | environment,
        check=False,
    )
    assert done.returncode == 0, (arguments, done.stdout, done.stderr)
    text = done.stdout.strip()
    if text.startswith("["):
        found: list[dict[str, Any]] = json.loads(text)
        return found
    return [json.loads(line) for line in text.splitlines()]


def test_all_that_earlier_releases_kept_is_served(tmp_path: Path) -> None:
    """One after the other: their folders are of the same ports."""
    assert RELEASES
    for release in RELEASES:
        serve(tmp_path / release.name, release)


def serve(folder: Path, release: Path) -> None:
    for role in ROLES:
        unpack(release / role / "data.tar.xz", folder)
    settings = folder / "data/standalone.toml"
    settings.write_text(settings.read_text().replace(str(WORK), str(folder)))
    with running(
        "standalone", f"--data={folder}/data", f"--port-base={PORT_BASE}", folder=folder
    ) as parts:
        check(access(parts), release)


def check(environment: dict[str, str], release: Path) -> None:
    def expected(role: str) -> Any:
        return json.loads((release / role / "expected.json").read_text())

    log = expected("log-store")["logs"]["orders"]
    first = log["records"][0][0]
    found = rows("log", "read", "orders", f"--from={first}", environment=environment)
    assert [[each["lsn"], each["data"]] for each in found] == log["records"]
    more = rows("log", "append", "orders", "one more", environment=environment)
    assert more[0]["lsn"] >= log["next_lsn"]

    acked = expected("bookies")["logs"]["ledgers"]
    found = rows("dlog", "read", "ledgers", environment=environment)
    assert [[each["at"], each["data"]] for each in found] == acked

    for logstore, records in expected("gateway")["records"].items():
        found = rows("tail", f"shop/{logstore}", "--from=begin", environment=environment)
        assert sorted(found, key=place) == sorted(records, key=place)

    table = expected("zeppelin-node")["tables"]["default"]
    texts = {text(key): text(value) for key, value, _ in table if is_text(key, value)}
    found = rows("kv", "get", *texts, environment=environment)
    assert {each["key"]: each["value"] for each in found} == texts


def place(record: dict[str, Any]) -> tuple[int, int, str]:
    return record["shard"], int(record["position"]), json.dumps(record)


def text(data: str) -> str:
    return bytes.fromhex(data.removeprefix("hex:")).decode()


def is_text(*data: str) -> bool:
    return all(bytes.fromhex(each.removeprefix("hex:")).isascii() for each in data)
