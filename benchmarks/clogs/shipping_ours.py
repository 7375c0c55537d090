"""`raftwood ship`, and a `raftwood standalone` that stores what it ships."""

import contextlib
import os
import pathlib
import random
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from typing import Final

import msgspec

from benchmarks.clogs.shipping_sinks import KEY, SECRET
from benchmarks.harness.cluster import ClusterFailed
from raftwood.loghub.client import LogHubClient
from raftwood.server.parts import Parts
from raftwood.server.standalone import PORTS

PROJECT: Final = "bench"
LOGSTORE: Final = "web"
_START_S_MAX: Final = 60.0
_STOP_S_MAX: Final = 30.0
_LOOK_S: Final = 0.05
_PORT_TRIES: Final = 100
_LAST_BYTES: Final = 500


class Receiving(msgspec.Struct, frozen=True, kw_only=True):
    """Where lines are shipped to, and by which right."""

    address: str
    key: str = KEY
    secret: str = SECRET
    process: int = 0
    """That stores them; 0 where it tells of itself."""


def ship_command(receiving: Receiving, state: pathlib.Path, path: str) -> list[str]:
    """Ships what is in the file, and ends once all of it is stored."""
    return [
        *(sys.executable, "-m", "raftwood.cli", "ship", path, "--once", "--name={base}"),
        *(f"--state={state}", f"--set=clogs_client.servers={receiving.address}"),
    ]


def ship_environment(receiving: Receiving) -> dict[str, str]:
    """A secret is no argument, which all on the machine can read."""
    return {
        **_plain_environment(),
        "RAFTWOOD_CLOGS_CLIENT__ACCESS_KEY": receiving.key,
        "RAFTWOOD_CLOGS_CLIENT__ACCESS_SECRET": receiving.secret,
    }


@contextlib.contextmanager
def running_standalone(folder: pathlib.Path, *, files_folder: str = "") -> Iterator[Receiving]:
    """With a logstore of one shard for all files; or with plain files, where a folder is named."""
    ready = folder / "ready.json"
    settings = [f"clogs.project={PROJECT}", f"clogs.logstore={LOGSTORE}"]
    if files_folder:
        settings += ["clogs.store=files", f"clogs.files_folder={files_folder}"]
    command = [sys.executable, "-m", "raftwood.cli.child_process", "standalone"]
    command += [f"--data={folder}/data", f"--port-base={_free_base()}", f"--ready-file={ready}"]
    command += [f"--set={each}" for each in settings]
    with (
        (folder / "standalone.log").open("wb") as log,
        subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=log, stderr=log, env=_plain_environment()
        ) as process,
    ):
        try:
            parts = _parts(ready, process)
            loghub = parts.loghub
            with LogHubClient.connect(
                loghub.native, access_key=loghub.access_key, access_secret=loghub.access_secret
            ) as client:
                client.create_project(PROJECT)
                client.create_logstore(PROJECT, LOGSTORE, shard_count=1)
            yield Receiving(
                address=parts.clogs[0],
                key=loghub.access_key,
                secret=loghub.access_secret,
                process=process.pid,
            )
        finally:
            process.terminate()
            try:
                process.wait(_STOP_S_MAX)
            except subprocess.TimeoutExpired:
                process.kill()


def _plain_environment() -> dict[str, str]:
    """No settings of whoever runs this, and no context."""
    plain = {name: value for name, value in os.environ.items() if "RAFTWOOD_" not in name}
    return plain | {"RAFTWOOD_CONTEXT": ""}


def _parts(ready: pathlib.Path, process: "subprocess.Popen[bytes]") -> Parts:
    deadline = time.monotonic() + _START_S_MAX
    while not ready.exists():
        if process.poll() is not None or time.monotonic() > deadline:
            said = (ready.parent / "standalone.log").read_bytes()[-_LAST_BYTES:]
            raise ClusterFailed(f"raftwood standalone did not start: {said.decode()}")
        time.sleep(_LOOK_S)
    return msgspec.json.decode(ready.read_bytes(), type=Parts)


def _free_base() -> int:
    """The first of some ports in a row, below those that the system gives to clients."""
    for _ in range(_PORT_TRIES):
        base = random.randrange(20_000, 32_000)
        with contextlib.ExitStack() as probes, contextlib.suppress(OSError):
            for port in range(base, base + PORTS):
                probes.enter_context(socket.socket()).bind(("127.0.0.1", port))
            return base
    raise ClusterFailed(f"no {PORTS} ports in a row are free on this machine")
