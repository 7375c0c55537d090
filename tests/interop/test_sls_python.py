"""The unmodified Python SDK of SLS against a gateway's real port: every call that it has for
streams, with both versions of signatures.
"""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from raftwood.loghub.model import AccessRole, LogKind
from raftwood.loghub.shards import kind_of_log
from raftwood.server.standalone import PORTS
from tests.kits.loghub.gateways import ThreadedGateway, threaded_gateway
from tests.kits.loghub.sls_sdk import Sdk, SdkError, sls_sdk
from tests.kits.ports import consecutive_ports
from tests.kits.server.running import connected, running

FIRST, END = "0" * 32, "f" * 32

pytestmark = pytest.mark.needs("sls_python")


@pytest.fixture(scope="module")
def sdk() -> Iterator[Sdk]:
    with sls_sdk() as found:
        yield found


@pytest.fixture
def served(tmp_path: Path) -> Iterator[ThreadedGateway]:
    with threaded_gateway(tmp_path) as gateway:
        yield gateway


@pytest.fixture(params=["v1", "v4"])
def client(sdk: Sdk, served: ThreadedGateway, request: pytest.FixtureRequest) -> Iterator[Any]:
    made = sdk.client(served, auth_version=request.param, region="here")
    yield made
    made._session.close()


def code_of(failure: pytest.ExceptionInfo[SdkError]) -> str:
    return failure.value.code


def stream(client: Any, *, shards: int = 1) -> None:
    client.create_project("p", "of the test")
    client.create_logstore("p", "s", ttl=7, shard_count=shards)


def put(sdk: Sdk, client: Any, *values: str, key: str | None = None, **options: Any) -> None:
    log = sdk.module("aliyun.log")
    items = [log.LogItem(int(time.time()), contents=[("message", value)]) for value in values]
    client.put_logs(
        log.PutLogsRequest("p", "s", "a topic", "a source", items, hashKey=key, **options)
    )


def read(client: Any, shard: int, **options: Any) -> list[str]:
    cursor = client.get_begin_cursor("p", "s", shard).get_cursor()
    end = client.get_end_cursor("p", "s", shard).get_cursor()
    found = []
    while cursor != end:
        pulled = client.pull_logs("p", "s", shard, cursor, **options)
        found += [log["message"] for log in pulled.get_flatten_logs_json()]
        assert pulled.get_next_cursor() != cursor
        cursor = pulled.get_next_cursor()
    return found


def test_projects_are_made_shown_changed_listed_and_removed(client: Any) -> None:
    client.create_project("one", "the first, höher")
    client.create_project("two", "the second")
    with pytest.raises(SdkError) as failure:
        client.create_project("one", "again")
    assert code_of(failure) == "ProjectAlreadyExist"
    found = client.get_project("one")
    assert (found.get_projectname(), found.get_description()) == ("one", "the first, höher")
    assert abs(int(found.get_create_time()) - time.time()) < 60
    client.update_project("one", "changed")
    assert client.get_project("one").get_description() == "changed"
    listed = client.list_project()
    assert [each["projectName"] for each in listed.get_projects()] == ["one", "two"]
    listed = client.list_project(offset=1, size=1, project_name_pattern="")
    assert (listed.get_count(), listed.get_total()) == (1, 2)
    assert client.list_project(project_name_pattern="tw").get_total() == 1
    client.delete_project("one")
    with pytest.raises(SdkError) as failure:
        client.get_project("one")
    assert code_of(failure) == "ProjectNotExist"
    assert failure.value.request_id


def test_logstores_are_made_shown_changed_listed_and_removed(sdk: Sdk, client: Any) -> None:
    client.create_project("p", "")
    client.create_logstore("p", "s", ttl=7, shard_count=3, auto_split=False)
    client.create_logstore("p", "other", preserve_storage=True)
    with pytest.raises(SdkError) as failure:
        client.create_logstore("p", "s")
    assert code_of(failure) == "LogStoreAlreadyExist"
    found = client.get_logstore("p", "s")
    assert (found.logstore_name, found.ttl, found.shard_count) == ("s", 7, 3)
    assert (found.auto_split, found.append_meta, found.enable_tracking) == (False, False, False)
    client.update_logstore("p", "s", ttl=9, append_meta=True)
    found = client.get_logstore("p", "s")
    assert (found.ttl, found.append_meta) == (9, True)
    assert client.get_logstore("p", "other").preserve_storage
    listed = client.list_logstore("p")
    assert (listed.get_logstores(), listed.get_total()) == (["other", "s"], 2)
    assert client.list_logstore("p", "oth", size=1).get_logstores() == ["other"]
    with pytest.raises(SdkError) as failure:
        client.delete_project("p")
    client.delete_logstore("p", "s")
    with pytest.raises(SdkError) as failure:
        client.get_logstore("p", "s")
    assert code_of(failure) == "LogStoreNotExist"
    with pytest.raises(SdkError) as failure:
        client.get_logs(sdk.module("aliyun.log").GetLogsRequest("p", "other", 0, 1, query="x"))
    assert code_of(failure) == "ParameterInvalid"


@pytest.mark.parametrize("options", [{}, {"compress": False}], ids=["lz4", "none"])
def test_logs_are_put_and_pulled_in_order(sdk: Sdk, client: Any, options: dict[str, Any]) -> None:
    stream(client)
    sent = [f"{number} höher \x00" for number in range(50)]
    for value in sent:
        put(sdk, client, value, **options)
    assert read(client, 0, count=7, **options) == sent
    assert read(client, 0) == sent
    pulled = client.pull_logs("p", "s", 0, client.get_begin_cursor("p", "s", 0).get_cursor())
    assert pulled.get_loggroup_count() == 50
    group = pulled.get_loggroup_json_list()[0]
    assert (group["topic"], group["source"]) == ("a topic", "a source")
    empty = client.pull_logs("p", "s", 0, pulled.get_next_cursor())
    assert (empty.get_loggroup_count(), empty.get_next_cursor()) == (0, pulled.get_next_cursor())


def test_logs_are_put_and_pulled_in_order_where_they_are_kept_in_ledgers(
    sdk: Sdk, tmp_path: Path
) -> None:
    given = (f"--data={tmp_path / 'data'}", f"--port-base={consecutive_ports(PORTS)}")
    sent = [f"{number} höher" for number in range(20)]
    with running("standalone", *given, folder=tmp_path) as parts, connected(parts) as native:
        native.create_project("p")
        native.create_logstore("p", "s", shard_count=1, log=LogKind.DLOG)
        part = parts["loghub"]
        sdk.reach(part["url"])
        key = part["access_key_id"], part["access_key_secret"]
        client = sdk.module("aliyun.log").LogClient("http://sls.test", *key)
        for value in sent:
            put(sdk, client, value)
        assert read(client, 0, count=7) == sent
        client.split_shard("p", "s", 0, "8" + "0" * 31)
        put(sdk, client, "low", key=FIRST)
        put(sdk, client, "high", key=END)
        assert [read(client, shard) for shard in range(3)] == [sent, ["low"], ["high"]]
        client._session.close()
        kinds = [kind_of_log(each.log) for each in native.shards("p", "s")]
        assert kinds == [LogKind.DLOG] * 3


def test_a_pull_by_time_ends_at_its_end(sdk: Sdk, client: Any) -> None:
    stream(client)
    put(sdk, client, "a")
    put(sdk, client, "b")
    now = int(time.time())
    found = [
        log["message"]
        for each in client.pull_log("p", "s", 0, now - 60, now + 60, batch_size=1)
        for log in each.get_flatten_logs_json()
    ]
    assert found == ["a", "b"]
    begin = client.get_begin_cursor("p", "s", 0).get_cursor()
    end = client.get_end_cursor("p", "s", 0).get_cursor()
    assert abs(client.get_cursor_time("p", "s", 0, begin).get_cursor_time() - now) <= 2
    assert abs(client.get_previous_cursor_time("p", "s", 0, end).get_cursor_time() - now) <= 2
    with pytest.raises(SdkError) as failure:
        client.pull_logs("p", "s", 0, begin, query="* | where a = 'b'")
    assert code_of(failure) == "ParameterInvalid"


def test_shards_are_split_merged_and_deleted_and_keys_find_them(sdk: Sdk, client: Any) -> None:
    stream(client, shards=1)
    put(sdk, client, "before")
    middle = "8" + "0" * 31
    split = client.split_shard("p", "s", 0, middle).get_shards_info()
    assert [each["shardID"] for each in split] == [0, 1, 2]
    shards = client.list_shards("p", "s").get_shards_info()
    assert [each["status"] for each in shards] == ["readonly", "readwrite", "readwrite"]
    assert shards[1]["inclusiveBeginKey"] == FIRST
    assert shards[1]["exclusiveEndKey"] == shards[2]["inclusiveBeginKey"] == middle
    assert shards[2]["exclusiveEndKey"] == END
    put(sdk, client, "low", key="1" * 32)
    put(sdk, client, "high", key="F" * 32)
    assert [read(client, shard) for shard in range(3)] == [["before"], ["low"], ["high"]]
    client.merge_shard("p", "s", 1)
    shards = client.list_shards("p", "s").get_shards_info()
    assert [each["status"] for each in shards] == ["readonly"] * 3 + ["readwrite"]
    client.delete_shard("p", "s", 0)
    assert [each["shardID"] for each in client.list_shards("p", "s").get_shards_info()] == [1, 2, 3]
    with pytest.raises(SdkError) as failure:
        client.get_begin_cursor("p", "s", 0)
    assert code_of(failure) == "ShardNotExist"


def test_consumer_groups_share_shards_and_keep_checkpoints(client: Any) -> None:
    stream(client, shards=2)
    client.create_consumer_group("p", "s", "g", 30, in_order=True)
    with pytest.raises(SdkError) as failure:
        client.create_consumer_group("p", "s", "g", 30)
    assert code_of(failure) == "ConsumerGroupAlreadyExist"
    (listed,) = client.list_consumer_group("p", "s").get_consumer_groups()
    assert listed.get_consumer_group_name() == "g"
    assert (listed.get_timeout(), listed.is_in_order()) == (30, True)
    client.update_consumer_group("p", "s", "g", timeout=40, in_order=False)
    (listed,) = client.list_consumer_group("p", "s").get_consumer_groups()
    assert (listed.get_timeout(), listed.is_in_order()) == (40, False)
    assert sorted(client.heart_beat("p", "s", "g", "me").get_shards()) == [0, 1]
    (fresh,) = client.get_check_point("p", "s", "g", 0).get_consumer_group_check_points()
    assert (fresh["shard"], fresh["checkpoint"]) == (0, "")
    end = client.get_end_cursor("p", "s", 0).get_cursor()
    client.update_check_point("p", "s", "g", 0, end, "me")
    noted = client.get_check_point("p", "s", "g").get_consumer_group_check_points()
    assert {each["shard"]: each["checkpoint"] for each in noted}[0] == end
    with pytest.raises(SdkError) as failure:
        client.update_check_point("p", "s", "g", 0, end, "another", force_success=False)
    assert code_of(failure) == "ConsumerNotMatch"
    client.delete_consumer_group("p", "s", "g")
    assert client.list_consumer_group("p", "s").get_consumer_groups() == []


def test_wrong_secrets_and_small_roles_are_refused(sdk: Sdk, served: ThreadedGateway) -> None:
    admin = sdk.client(served)
    stream(admin)
    key = served.run(served.gateway.access.create({"p": AccessRole.READER}))
    reader = sdk.client(served, key)
    assert reader.get_logstore("p", "s").logstore_name == "s"
    with pytest.raises(SdkError) as failure:
        put(sdk, reader, "x")
    assert code_of(failure) == "Unauthorized"
    with pytest.raises(SdkError) as failure:
        reader.create_project("q", "")
    assert code_of(failure) in ("Unauthorized", "ProjectNotExist")
    for wrong in ({"secret": "wrong"}, {"id": "nobody"}):
        stranger = sdk.client(served, msgspec.structs.replace(served.admin, **wrong))
        with pytest.raises(SdkError) as failure:
            stranger.list_project()
        assert code_of(failure) == "SignatureNotMatch"
        stranger._session.close()
    for each in (admin, reader):
        each._session.close()


def test_the_sdks_logging_handler_puts_what_is_logged(sdk: Sdk, served: ThreadedGateway) -> None:
    client = sdk.client(served)
    stream(client)
    key = served.admin.id, served.admin.secret
    handler = sdk.module("aliyun.log").QueuedLogHandler(
        "http://sls.test", *key, "p", "s", close_wait=5
    )
    logging = sdk.module("logging")
    logger = logging.getLogger("of the interop test")
    logger.setLevel(logging.INFO)
    logger.addHandler(handler)
    for number in range(20):
        logger.info("line %d", number)
    handler.flush()
    handler.stop()
    logger.removeHandler(handler)
    handler.client._session.close()
    assert read(client, 0) == [f"line {number}" for number in range(20)]
    client._session.close()
