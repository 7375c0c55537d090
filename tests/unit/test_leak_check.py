"""The checks of conftest.py can fail: each kind of thing left behind is noticed."""

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
LEAKS = {
    "task": "asyncio.run(leak_task())",
    "socket": "KEPT.append(socket.create_server(('127.0.0.1', 0)))",
    "thread": "threading.Thread(target=time.sleep, args=(100,), daemon=True).start()",
    "loop": "KEPT.append(asyncio.new_event_loop())",
    "process": "KEPT.append(subprocess.Popen(['sleep', '100'], stdout=subprocess.DEVNULL))",
    "server": "end_server()",
}
LEAKY = """
import asyncio, socket, subprocess, threading, time
from raftwood.disk.real_environment import real_environment
from tests.conftest import ProcessEnds
KEPT = []

async def leak_task():
    KEPT.append(asyncio.create_task(asyncio.sleep(30)))

def end_server():
    try:
        with real_environment() as environment:
            environment.end_process("left behind: server's sync")
    except ProcessEnds:
        pass
"""
LEAK = """
def test_leaks_{kind}():
    {leak}
"""
CONFTEST = """
from tests import conftest
from tests.conftest import _no_server_ends_the_worker, _no_task_is_left, _nothing_leaks
from tests.conftest import pytest_runtest_logreport, pytest_sessionstart
conftest.GRACE_SECONDS = 0.5
"""


def test_what_a_test_leaves_behind_fails_it(tmp_path: Path) -> None:
    leaks = [LEAK.format(kind=kind, leak=leak) for kind, leak in LEAKS.items()]
    (tmp_path / "conftest.py").write_text(CONFTEST)
    (tmp_path / "test_leaky.py").write_text("".join([LEAKY, *leaks]))
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
    assert f"{len(LEAKS)} passed, {len(LEAKS)} errors" in ended.stdout
    for kind in LEAKS:
        assert f"test_leaks_{kind} failed in its teardown: " in ended.stdout
        told = ended.stdout.partition(f"ERROR at teardown of test_leaks_{kind} ")[2]
        assert kind in re.findall(r"^E +.*left behind: (.*)$", told, re.MULTILINE)[0].lower()
