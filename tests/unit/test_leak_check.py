"""The checks of conftest.py can fail: each kind of thing left behind is noticed."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
LEAKS = {
    "task": "asyncio.run(leak_task())",
    "socket": "KEPT.append(socket.create_server(('127.0.0.1', 0)))",
    "thread": "threading.Thread(target=time.sleep, args=(100,), daemon=True).start()",
    "process": "KEPT.append(subprocess.Popen(['sleep', '100'], stdout=subprocess.DEVNULL))",
}
LEAKY = """
import asyncio, socket, subprocess, threading, time
KEPT = []

async def leak_task():
    KEPT.append(asyncio.create_task(asyncio.sleep(30)))

def test_leaks():
    {leak}
"""
CONFTEST = """
from tests import conftest
from tests.conftest import _no_task_is_left, _nothing_leaks
conftest.GRACE_SECONDS = 0.5
"""


@pytest.mark.parametrize("kind", sorted(LEAKS))
def test_what_a_test_leaves_behind_fails_it(kind: str, tmp_path: Path) -> None:
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_leaky.py").write_text(LEAKY.format(leak=LEAKS[kind]))
    ended = subprocess.run(
        (sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", str(tmp_path)),
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        text=True,
        check=False,
        timeout=60,
    )
    assert ended.returncode == 1
    assert "left behind: " in ended.stdout
    assert kind in ended.stdout.partition("left behind: ")[2].lower()
    assert "1 passed, 1 error" in ended.stdout
