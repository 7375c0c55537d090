"""With `raftwood standalone` running, the README's commands work without an export or a flag."""

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
ELSEWHERE = {
    "raftwood cluster drain 3": "a standalone has one store",
    "raftwood pipeline run web.toml": "needs Spark; tests/pipeline runs its page",
    "raftwood pipeline status web.toml": "needs Spark; tests/pipeline runs its page",
}
ENDING = {
    "tail shop/orders -f": "tail shop/orders",
    "log tail orders --from 1": "log tail orders --from 1 --count 1000",
    "ship '/var/log/shop/*.log' --state ship-state": "ship 'shop/*.log' --state ship-state --once",
}
"""Commands that follow without end, and the same ones with an end."""
OTHERS = """\
raftwood config show
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


def _lines() -> list[str]:
    text = "".join(blocks(ROOT / "README.md", "sh"))
    found = [re.sub(r"\s+#.*", "", line) for line in text.splitlines()]
    return [line for line in found if "raftwood " in line and line not in ELSEWHERE]


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

    lines = _lines()
    assert len(lines) >= 20
    script = "\n".join(["set -e -o pipefail", *lines, OTHERS])
    for endless, ending in ENDING.items():
        assert endless in script
        script = script.replace(endless, ending)
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
            assert "user-" in worker.stdout.readline()
        finally:
            worker.send_signal(signal.SIGTERM)
    assert not [*folder.glob("*.sqlite*")]
