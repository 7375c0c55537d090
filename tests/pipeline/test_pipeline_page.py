"""The examples of docs/pipeline.md run, from top to bottom."""

from pathlib import Path
from typing import Any

import pytest

from raftwood.pipeline.options import GATEWAYS_VARIABLE, KEY_VARIABLE, SECRET_VARIABLE
from raftwood.zeppelin.client import Kv
from tests.kits.pipeline.kit import Hub
from tests.kits.server.pages import ROOT, blocks


def test_the_examples_of_the_page_run(
    hub: Hub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    part = hub.standalone.loghub
    monkeypatch.setenv(GATEWAYS_VARIABLE, part.native)
    monkeypatch.setenv(KEY_VARIABLE, part.access_key)
    monkeypatch.setenv(SECRET_VARIABLE, part.access_secret)
    monkeypatch.chdir(tmp_path)
    hub.client.create_project("web")
    hub.client.create_logstore("web", "access")
    hub.client.create_logstore("web", "copy")
    with hub.client.producer("web", "access") as producer:
        for number in range(20):
            producer.send({"path": f"/{number}", "status": str(200 + number % 2)})
    kv = hub.standalone.parts.kv
    assert kv is not None
    table = {"addresses": f"{kv.host}:{kv.port}", "user": kv.user, "password": kv.password}
    names: dict[str, Any] = {"spark": hub.spark, "access": hub.access, "table": table}
    for block in blocks(ROOT / "docs" / "pipeline.md", "python"):
        exec(compile(block, "docs/pipeline.md", "exec"), names)
    copied = hub.spark.read.format("loghub").options(**hub.access).load("web/copy")
    assert copied.count() == 30
    with Kv.connect(table["addresses"], user=kv.user, password=kv.password) as client:
        assert client.get_many(["hits:/3", "path:/3", "path:/20"]) == [b"1", b"201", None]
    assert names["report"].rows == 20
    assert sorted(names["by_status"].column("time_count").to_pylist()) == [10, 10]
    assert names["frame"].count() == 20
