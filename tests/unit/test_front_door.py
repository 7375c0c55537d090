"""`raftwood` and `raftwood.aio`: what they load, what they show, and what they refuse."""

import asyncio
import json
import os
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import raftwood
from raftwood import aio, errors, pipeline, testing
from raftwood.base.contexts import Contexts
from raftwood.base.errors import RaftwoodError
from raftwood.loghub.client.reader import start_at
from raftwood.server.clients import shipper_settings

MODULES_MAX = 8
"""Of Raftwood, that `import raftwood` may load: the package, and how it loads the others."""
HELP_MODULES_MAX = 25
HEAVY = {"asyncio", "msgspec", "cyclopts", "structlog", "pyarrow", "raftwood.server"}


@pytest.fixture(autouse=True)
def _nothing_is_set(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in os.environ if name.startswith("RAFTWOOD_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)


def loaded_by(program: str) -> set[str]:
    """The modules that a new interpreter has loaded at the end of a program."""
    done = subprocess.run(
        [sys.executable, "-c", f"{program}\nimport json, sys\nprint(json.dumps([*sys.modules]))"],
        check=True,
        capture_output=True,
        text=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
    )
    return set(json.loads(done.stdout.splitlines()[-1]))


def of_raftwood(modules: set[str]) -> set[str]:
    return {name for name in modules if name.partition(".")[0] == "raftwood"}


def test_the_import_loads_nothing_but_the_names() -> None:
    modules = loaded_by("import raftwood; raftwood.__all__; dir(raftwood)")
    assert len(of_raftwood(modules)) <= MODULES_MAX
    assert modules & HEAVY == set()


def test_the_help_loads_no_system() -> None:
    modules = loaded_by("from raftwood.cli.command_line import run; run(['--help'])")
    assert len(of_raftwood(modules)) <= HELP_MODULES_MAX
    systems = ("loghub", "logservice", "dlog", "zeppelin", "clogs", "server", "pipeline")
    assert {
        name for name in modules if name.startswith(tuple(f"raftwood.{each}" for each in systems))
    } == set()


def test_a_name_loads_what_it_needs_and_no_more() -> None:
    modules = loaded_by("import raftwood; raftwood.errors.NotFound; raftwood.RaftwoodError")
    assert "raftwood.server.settings" not in modules
    assert "pyarrow" not in loaded_by("import raftwood; raftwood.connect; raftwood.aio.connect")


@pytest.mark.parametrize("module", [raftwood, aio, errors, pipeline, testing])
def test_every_name_of_the_front_door_can_be_loaded(module: ModuleType) -> None:
    for name in module.__all__:
        assert getattr(module, name) is not None


def test_unknown_names_are_refused() -> None:
    with pytest.raises(AttributeError, match="nothing_of_the_kind"):
        raftwood.nothing_of_the_kind  # noqa: B018
    assert {*raftwood.__all__} <= {*dir(raftwood)}


def test_all_errors_are_of_one_tree() -> None:
    assert all(issubclass(getattr(errors, name), RaftwoodError) for name in errors.__all__)


@pytest.mark.parametrize(
    ("use", "text"),
    [
        (lambda cluster: cluster.stream("shop/orders").create(), r"loghub_client\.access_key is"),
        (lambda cluster: cluster.stream("shop/orders").producer(), "raftwood key create"),
        (lambda cluster: cluster.stream("shop/orders").read(), "raftwood key create"),
        (lambda cluster: cluster.loghub(), "raftwood key create"),
        (lambda cluster: cluster.log("orders"), r"secrets\.clients is not set"),
        (lambda cluster: cluster.log("orders", is_read_only=True), r"secrets\.readers is not set"),
        (lambda cluster: cluster.dlog("audit").create(), r"secrets\.clients is not set"),
        (lambda cluster: cluster.kv(), r"zeppelin_client\.password is not set"),
        (lambda cluster: cluster.kv("sessions"), r"the password of 'sessions' is not known"),
    ],
)
def test_what_a_system_lacks_is_named_when_it_is_used(use: Any, text: str) -> None:
    with raftwood.connect() as cluster, pytest.raises(errors.InvalidConfiguration, match=text):
        use(cluster)


def test_stores_that_nobody_named_are_asked_for() -> None:
    given = {"secrets.clients": "x" * 43}
    with (
        raftwood.connect(settings=given) as cluster,
        pytest.raises(errors.InvalidInput, match=r"cluster\.members"),
    ):
        cluster.log("orders")


@pytest.mark.parametrize("name", ["orders", "/orders", "shop/", "shop/a b"])
def test_a_stream_is_a_project_and_a_logstore(name: str) -> None:
    with raftwood.connect() as cluster, pytest.raises(errors.InvalidInput):
        cluster.stream(name)


def test_a_target_is_what_commands_use_a_file_or_addresses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def key(target: Any = None, **given: Any) -> tuple[str, tuple[str, ...]]:
        found = aio.load_settings(target, **given).loghub_client
        return found.access_key, found.gateways

    file = tmp_path / "cluster.toml"
    file.write_text('[loghub_client]\naccess_key = "of-file"\ngateways = ["file:1"]\n')
    assert key(file) == key(str(file)) == ("of-file", ("file:1",))
    monkeypatch.setenv("RAFTWOOD_CONFIG", str(file))
    assert key() == ("of-file", ("file:1",))
    monkeypatch.setenv("RAFTWOOD_LOGHUB_CLIENT__ACCESS_KEY", "of-environment")
    assert key() == key(file) == ("of-environment", ("file:1",))
    assert key(access_key="given") == ("given", ("file:1",))
    assert key(settings={"loghub_client.access_key": "given"}) == ("given", ("file:1",))
    # Addresses stand alone.
    assert key("one:7200, two:7200") == ("", ("one:7200", "two:7200"))
    assert key("one:7200", access_key="given") == ("given", ("one:7200",))


def test_the_context_in_use_is_read_and_another_one_where_it_is_named() -> None:
    contexts = Contexts.of(os.environ)
    contexts.write("one", b'[loghub_client]\naccess_key = "of-one"\n')
    contexts.write("two", b'[loghub_client]\naccess_key = "of-two"\n')
    contexts.use("one")
    assert aio.load_settings().loghub_client.access_key == "of-one"
    assert aio.load_settings(context="two").loghub_client.access_key == "of-two"
    # Addresses stand alone.
    assert aio.load_settings("one:7200").loghub_client.access_key == ""
    with pytest.raises(errors.NotFound, match="no context three"):
        raftwood.connect(context="three")
    with pytest.raises(errors.InvalidInput, match="not two of them"):
        raftwood.connect("client.toml", context="two")


def test_a_target_or_a_setting_that_cannot_be_is_refused() -> None:
    for target in ("missing.toml", "host", "host:port"):
        with pytest.raises(errors.InvalidConfiguration, match="cannot be read"):
            raftwood.connect(target)
    with pytest.raises(errors.InvalidConfiguration, match=r"did you mean loghub_client\.gateways"):
        raftwood.connect(settings={"loghub_client.gateway": []})
    with pytest.raises(errors.InvalidConfiguration, match=r"argument zeppelin_client\.timeout_ms"):
        raftwood.connect(settings={"zeppelin_client.timeout_ms": "soon"})


def test_a_consumer_is_still_the_function_and_runs_only_what_it_can() -> None:
    with raftwood.connect() as cluster:
        stream = cluster.stream("shop/orders")

        @stream.consumer(group="billing")
        def process(batch: Any, checkpoint: Any) -> tuple[Any, Any]:
            return batch, checkpoint

        assert process("batch", "checkpoint") == ("batch", "checkpoint")
        with pytest.raises(errors.InvalidConfiguration, match="access_key"):
            process.run()
        with pytest.raises(errors.InvalidInput, match=r"raftwood\.aio"):

            @stream.consumer(group="billing")
            async def wrong(batch: Any, checkpoint: Any) -> None: ...

        with pytest.raises(errors.InvalidInput, match="give 1s at least"):
            stream.consumer(group="billing", timeout_s=0)


def test_a_consumer_on_an_event_loop_may_not_block_it() -> None:
    stream = aio.AsyncCluster(aio.load_settings()).stream("shop/orders")
    with pytest.raises(errors.InvalidInput, match="may block"):
        stream.consumer(group="billing")(lambda batch, _: batch)  # type: ignore[arg-type,return-value]
    with pytest.raises(errors.InvalidInput, match="no Processor"):
        stream.consumer(group="billing")(dict)  # type: ignore[arg-type]

    class Billing(raftwood.Processor):
        def process(self, batches: Any, tracker: Any) -> None: ...

    assert stream.consumer(group="billing")(Billing).group == "billing"


def test_a_cluster_is_awaited_or_entered_and_closed_once() -> None:
    async def main() -> None:
        async with aio.connect() as entered:
            assert entered.stream("shop/orders").logstore == "orders"
        awaited = await aio.connect()
        await awaited.close()
        await awaited.close()
        with pytest.raises(errors.Unavailable, match="closed"):
            await awaited.kv(password="x")

    asyncio.run(main())


def test_a_client_of_a_closed_cluster_says_so() -> None:
    cluster = raftwood.connect()
    stream = cluster.stream("shop/orders")
    cluster.close()
    cluster.close()
    with pytest.raises(errors.Unavailable, match="closed"):
        stream.create()


def test_a_start_is_written_in_many_ways() -> None:
    now_s = 1_800_000_000.9
    noon = datetime(2026, 9, 21, 14, 13, 20, tzinfo=UTC)
    given = (noon, noon.replace(tzinfo=None), "2026-09-21T14:13:20Z", "1790000000")
    assert {start_at(each, now_s=now_s) for each in given} == {1_790_000_000}
    ago = ("-15m", "15min", "-900s", timedelta(minutes=15), -timedelta(minutes=15))
    assert {start_at(each, now_s=now_s) for each in ago} == {1_799_999_100}
    for wrong in ("-15", "-15 weeks", "yesterday"):
        with pytest.raises(errors.InvalidInput, match="is no place to begin"):
            start_at(wrong, now_s=now_s)


def test_a_shipper_comes_with_the_key_of_loghub_unless_it_has_one() -> None:
    key = {"loghub_client.access_key": "hub", "loghub_client.access_secret": "secret"}
    found = shipper_settings(aio.load_settings(settings=key), ring="web")
    assert (found.access_key, found.access_secret.reveal(), found.ring) == ("hub", "secret", "web")
    own = key | {"clogs_client.access_key": "own"}
    assert shipper_settings(aio.load_settings(settings=own)).access_key == "own"
