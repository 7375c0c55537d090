"""Logstores of both kinds on one gateway: each log is where its name says."""

from pathlib import Path

import pytest
from tests.kits.loghub.memory_logs import MemoryLogs
from tests.kits.loghub.streams import GatewayKit, gateway_kit, log_group
from tests.kits.running import run
from tests.unit.loghub.test_streams import read_all

from raftwood.base.errors import InvalidConfiguration
from raftwood.base.metrics import Metrics
from raftwood.loghub.errors import InvalidParameter
from raftwood.loghub.model import LogKind, Logstore
from raftwood.loghub.server.gateway import Gateway
from raftwood.loghub.server.metadata import logstore_key
from raftwood.loghub.shards import is_log_name, kind_of_log, log_name
from raftwood.loghub.wire import CreateLogstore
from raftwood.server.gateway import LogsByKind


class _Both:
    def __init__(self, kit: GatewayKit) -> None:
        self._kit = kit
        self.raft, self.ledgers = MemoryLogs(), MemoryLogs()

    async def gateway(self) -> Gateway:
        kinds = {LogKind.LOGSERVICE: self.raft, LogKind.DLOG: self.ledgers}
        made = Gateway(
            self._kit.environment,
            self._kit.store,
            LogsByKind(kinds),
            settings=self._kit.settings,
            loghub=self._kit.loghub,
            metrics=Metrics(),
            log_kinds=kinds,
        )
        await made.start()
        self._kit.gateways.append(made)
        return made


def test_a_name_says_which_log_it_is() -> None:
    for kind in LogKind:
        name = log_name(kind, bytes(range(12)))
        assert is_log_name(name)
        assert kind_of_log(name) is kind
    # As they were before there was a choice.
    assert log_name(LogKind.LOGSERVICE, bytes(range(12))) == "loghub-000102030405060708090a0b"
    for other in ("orders", "loghub-x", "loghub-dlog-0001", "loghub-zlog-" + "0" * 24):
        assert not is_log_name(other)


def test_shards_of_splits_and_merges_are_kept_in_what_the_logstore_chose(tmp_path: Path) -> None:
    async def body() -> None:
        async with gateway_kit(tmp_path) as kit:
            both = _Both(kit)
            gateway = await both.gateway()
            admin = await kit.admin()
            await gateway.catalog.create_project("p")
            for name, kind in (("s", LogKind.DLOG), ("t", LogKind.LOGSERVICE)):
                call = CreateLogstore(project="p", logstore=name, shard_count=1, log=kind)
                await gateway.control(admin, call)
            assert (await gateway.catalog.logstore("p", "s")).log is LogKind.DLOG
            await gateway.streams.put("p", "s", log_group("a"))
            await gateway.streams.put("p", "t", log_group("b"))
            await gateway.streams.split("p", "s", 0)
            await gateway.streams.put("p", "s", log_group("c"), shard=1)
            await gateway.streams.merge("p", "s", 1)
            assert await read_all(gateway, 0) == ["a"]
            assert await read_all(gateway, 1) == ["c"]
            assert (len(both.ledgers.logs), len(both.raft.logs)) == (4, 1)
            await gateway.catalog.delete_logstore("p", "s")
            assert (len(both.ledgers.logs), len(both.raft.logs)) == (0, 1)

    run(body())


def test_strays_of_both_kinds_are_found(tmp_path: Path) -> None:
    async def body() -> None:
        async with gateway_kit(tmp_path) as kit:
            both = _Both(kit)
            gateway = await both.gateway()
            await gateway.catalog.create_project("p")
            await gateway.catalog.create_logstore("p", "s", shard_count=1, log=LogKind.DLOG)
            settling = gateway.streams._settling
            strays = sorted(settling.new_log(kind) for kind in LogKind)
            logs = LogsByKind({LogKind.LOGSERVICE: both.raft, LogKind.DLOG: both.ledgers})
            for name in strays:
                await logs.create(name)
            assert await settling.stray_logs() == strays
            assert all([await settling.remove_stray(each) for each in strays])
            assert (len(both.ledgers.logs), len(both.raft.logs)) == (1, 0)

    run(body())


def test_a_gateway_without_dlog_refuses_such_logstores_and_says_what_to_do(tmp_path: Path) -> None:
    async def body() -> None:
        async with gateway_kit(tmp_path) as kit:
            plain = await kit.gateway()
            await plain.catalog.create_project("p")
            with pytest.raises(InvalidParameter, match=r"set dlog\.store"):
                await plain.catalog.create_logstore("p", "s", log=LogKind.DLOG)
            assert await plain.metadata.fresh(logstore_key("p", "s"), Logstore) is None
            with pytest.raises(InvalidConfiguration, match=r"set dlog\.store"):
                await LogsByKind({}).open(log_name(LogKind.DLOG, bytes(12)))

    run(body())
