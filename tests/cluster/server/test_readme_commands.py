"""With `raftwood standalone` running, commands work without an export or a flag; the README shows
what they print.
"""

import json
import os
import re
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from raftwood.server.standalone import PORTS
from tests.kits.ports import consecutive_ports
from tests.kits.processes import RAFTWOOD
from tests.kits.server.pages import ROOT, blocks
from tests.kits.server.quick_commands import QuickCommands
from tests.kits.server.running import running
from tests.kits.servers.shared import shared

COMMAND_S_MAX = 240
OTHERS = """\
raftwood config show
raftwood produce shop/orders --input json --key user < orders.jsonl
raftwood tail shop/orders --where level=error
raftwood shard split shop/orders 0
raftwood key create shop=reader
raftwood logstore create shop/audit --log dlog
raftwood log create orders
seq 1 1000 | raftwood log append orders
raftwood log tail orders --from 1 --count 1000
raftwood log truncate orders 500
raftwood log backup orders folder
raftwood cluster status
raftwood ship 'shop/*.log' --state other-state --once
raftwood clogs status --state other-state
raftwood clogs config set ring.json
raftwood clogs ring --servers servers.json --keys names
raftwood kv table create sessions
raftwood kv status
raftwood dlog create ledgers
seq 1 3 | raftwood dlog append ledgers
raftwood dlog read ledgers
raftwood project list
raftwood key list
raftwood bookie status
raftwood ledger list
raftwood kv node list
raftwood kv cluster status
raftwood raft status
raftwood meta list /
raftwood clogs config get
raftwood tail default/shipped
"""
"""Not in the README, and as good."""


def _commands_and_output() -> tuple[list[str], list[str]]:
    """What the README shows behind the start of its cluster."""
    _, *later = blocks(ROOT / "README.md", "console")
    lines = "".join(later).splitlines()
    commands = [line[2:] for line in lines if line.startswith("$ ")]
    return commands, [line for line in lines if not line.startswith("$ ")]


def _without_numbers(line: str) -> str:
    """Times and positions differ from run to run, and so do widths of columns."""
    return " ".join(re.sub(r"\d+", "0", line).split())


@pytest.fixture
def parts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, Any]]:
    """What a standalone says of itself, whose user has no contexts of other clusters."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("RAFTWOOD_CONTEXT")
    base = f"--port-base={consecutive_ports(PORTS)}"
    with running("standalone", f"--data={tmp_path / 'data'}", base, folder=tmp_path) as found:
        yield found


def test_every_command_of_the_readme_finds_the_standalone(
    parts: dict[str, Any], tmp_path: Path
) -> None:
    host, _, port = parts["clogs"][0].rpartition(":")
    server = {"host": host, "port": int(port)}
    orders = [{"user": f"user-{number}", "level": "error"} for number in range(10)]
    (tmp_path / "orders.jsonl").write_text("".join(f"{json.dumps(each)}\n" for each in orders))
    (tmp_path / "ring.json").write_text(json.dumps({"servers": [server]}))
    (tmp_path / "servers.json").write_text(json.dumps([server]))
    (tmp_path / "names").write_text("access.log\n")
    (tmp_path / "shop").mkdir()
    (tmp_path / "shop/access.log").write_text("shipped at once\n")

    commands, output = _commands_and_output()
    assert len(commands) >= 10
    assert len(output) >= 5
    script = "\n".join(["set -e -o pipefail", *commands, OTHERS])
    path = os.pathsep.join([shared(QuickCommands).path, os.environ["PATH"]])
    done = subprocess.run(
        ("bash", "-x", "-c", script),
        cwd=tmp_path,
        env=os.environ | {"PATH": path},
        capture_output=True,
        text=True,
        timeout=COMMAND_S_MAX,
        check=False,
    )
    assert done.returncode == 0, (done.stdout, done.stderr)
    assert {*map(_without_numbers, output)} <= {*map(_without_numbers, done.stdout.splitlines())}
    assert parts["stream"] == "default/shipped"
    assert "shipped at once" in done.stdout  # by tail default/shipped
    _check_consume(tmp_path)
    printed = (tmp_path / "standalone.out").read_text()
    for secret in (parts["loghub"]["access_key_secret"], parts["kv"]["password"]):
        assert secret not in printed
    assert "context standalone" in printed


def _check_consume(folder: Path) -> None:
    """Its leases are in the metastore of the standalone: no file is made in the folder."""
    command = (*RAFTWOOD, "consume", "shop/orders", "--group=billing")
    with subprocess.Popen(command, cwd=folder, stdout=subprocess.PIPE, text=True) as worker:
        try:
            assert worker.stdout is not None
            assert "user=" in worker.stdout.readline()
        finally:
            worker.send_signal(signal.SIGTERM)
    assert not [*folder.glob("*.sqlite*")]
