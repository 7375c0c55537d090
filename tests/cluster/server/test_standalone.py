"""All of Raftwood with one command: in one process, or as a cluster of processes; data is kept."""

from pathlib import Path

import pytest

from raftwood.loghub.model import LogKind
from raftwood.server.standalone import PORTS
from tests.kits.ports import consecutive_ports
from tests.kits.server.running import connected, redis_of, running


@pytest.mark.parametrize(
    ("command", "ports"),
    [
        (("standalone",), PORTS),
        (("cluster", "up", "--stores=3", "--gateways=1", "--kv-nodes=1"), 14),
    ],
    ids=["standalone", "cluster up"],
)
def test_what_was_written_is_there_after_a_restart(
    tmp_path: Path, command: tuple[str, ...], ports: int
) -> None:
    base = consecutive_ports(ports)
    given = (*command, f"--data={tmp_path / 'data'}", f"--port-base={base}")
    with running(*given, folder=tmp_path) as first, connected(first) as client:
        with redis_of(first) as redis:
            for number in range(20):
                redis.set(f"key-{number}", number)
        client.create_project("p")
        for kind in LogKind:
            client.create_logstore("p", kind.value, shard_count=1, log=kind)
            with client.producer("p", kind.value) as producer:
                producer.send({"message": "kept"})
    with running(*given, folder=tmp_path) as second, connected(second) as client:
        assert (second["loghub"], second["kv"]) == (first["loghub"], first["kv"])
        with redis_of(second) as redis:
            assert [redis.incr(f"key-{number}") for number in range(20)] == [*range(1, 21)]
        assert second["loghub"]["url"].startswith("http://127.0.0.1:")
        for kind in LogKind:
            with client.producer("p", kind.value) as producer:
                producer.send({"message": "more"})
            with client.reader("p", kind.value) as reader:
                found = [record.contents["message"] for record in reader]
            assert (kind, found) == (kind, ["kept", "more"])
    assert (tmp_path / f"{command[0]}.ready").stat().st_mode & 0o077 == 0
