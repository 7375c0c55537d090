"""SLS's SDKs for Go and Java, as they are: their calls for streams and consumer groups."""

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from raftwood.loghub.wire import decode_cursor
from tests.kits.loghub.gateways import ThreadedGateway, threaded_gateway
from tests.kits.loghub.sls_programs import go_command, java_command

SECONDS_MAX = 60
# The Java SDK refuses names that are shorter than SLS allows.
PROJECT, LOGSTORE = "project", "stream"


def calls(served: ThreadedGateway, command: list[str]) -> dict[str, Any]:
    """What the program found; it ends with an error where a call was refused."""
    given = {
        "id": served.admin.id,
        "secret": served.admin.secret,
        "project": PROJECT,
        "logstore": LOGSTORE,
        "proxy": served.address,
    }
    environment = {**os.environ, "http_proxy": f"http://{served.address}", "no_proxy": ""}
    ended = subprocess.run(
        [*command, "calls", json.dumps(given)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=SECONDS_MAX,
        check=False,
    )
    assert ended.returncode == 0, ended.stdout + ended.stderr
    found: dict[str, Any] = json.loads(ended.stdout.splitlines()[-1])
    return found


def check_group(found: dict[str, Any]) -> None:
    assert found["split"] == 3
    assert found["shards"] == ["0 readonly", "1 readwrite", "2 readwrite"]
    assert found["groups"] == ["readers"]
    assert found["error"] == "ConsumerGroupAlreadyExist"
    assert found["held"] == [0, 1, 2], "the parent first, then its children"
    end, *children = found["checkpoints"]
    assert decode_cursor(end) > 0
    assert children == ["", ""]


@pytest.mark.needs("sls_go")
def test_the_calls_of_the_go_sdk_work(tmp_path: Path) -> None:
    with threaded_gateway(tmp_path) as served:
        found = calls(served, go_command())
    assert found["pulled"] == ["lz4", "zstd", "plain", "by key"]
    check_group(found)


@pytest.mark.needs("sls_java")
def test_the_calls_of_the_java_sdk_work(tmp_path: Path) -> None:
    with threaded_gateway(tmp_path) as served:
        found = calls(served, java_command())
    assert found["pulled"] == ["lz4", "by key"]
    assert found["fenced"] == "ConsumerNotMatch"
    check_group(found)
