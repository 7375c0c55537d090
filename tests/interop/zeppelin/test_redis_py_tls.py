"""redis-py over TLS: the certificate is checked, and all goes as without."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import redis
import trustme
from redis.backoff import NoBackoff
from redis.cluster import ClusterNode, RedisCluster
from redis.retry import Retry

from raftwood.net import ServerTls, TlsFiles
from tests.kits.zeppelin.data_node import DataNode, data_node
from tests.kits.zeppelin.static_view import PASSWORD, WRITER

LARGE = b"x" * 3_000_000


@pytest.fixture(scope="module")
def authorities(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("certificates")
    authority = trustme.CA()
    issued = authority.issue_cert("127.0.0.1", "localhost")
    issued.private_key_and_cert_chain_pem.write_to_path(str(folder / "node.pem"))
    path = folder / "authorities.pem"
    authority.cert_pem.write_to_path(str(path))
    return path


@pytest.fixture(scope="module")
def node(authorities: Path) -> Iterator[DataNode]:
    certificate = str(authorities.parent / "node.pem")
    with data_node(tls=ServerTls(TlsFiles(certificate=certificate))) as started:
        yield started


def options(authorities: Path) -> dict[str, Any]:
    return {
        "username": WRITER,
        "password": PASSWORD,
        "ssl": True,
        "ssl_ca_certs": str(authorities),
        "ssl_check_hostname": True,
        "retry": Retry(NoBackoff(), 0),
    }


@pytest.mark.parametrize("protocol", [2, 3])
def test_a_client_writes_and_reads_over_tls(
    node: DataNode, authorities: Path, protocol: int
) -> None:
    with redis.Redis(port=node.port, protocol=protocol, **options(authorities)) as client:
        assert client.set("large", LARGE)
        assert client.get("large") == LARGE
        with client.pipeline(transaction=False) as pipeline:
            for number in range(1_000):
                pipeline.incrby(f"count{protocol}", number)
            assert pipeline.execute()[-1] == 499_500


def test_a_cluster_client_writes_and_reads_over_tls(node: DataNode, authorities: Path) -> None:
    nodes = [ClusterNode("127.0.0.1", node.port)]
    with RedisCluster(startup_nodes=nodes, **options(authorities)) as cluster:
        assert cluster.mset_nonatomic({f"key{number}": number for number in range(50)})
        assert cluster.get("key7") == b"7"


def test_who_does_not_trust_the_node_or_speaks_no_tls_gets_nowhere(
    node: DataNode, authorities: Path
) -> None:
    stranger = authorities.parent / "stranger.pem"
    trustme.CA().cert_pem.write_to_path(str(stranger))
    with (
        redis.Redis(port=node.port, **options(stranger)) as client,
        pytest.raises(redis.ConnectionError, match="certificate"),
    ):
        client.ping()
    with (
        redis.Redis(port=node.port, retry=Retry(NoBackoff(), 0)) as client,
        pytest.raises(redis.ConnectionError),
    ):
        client.ping()


def test_what_redis_py_asks_at_connect_is_answered_as_by_redis(
    node: DataNode, authorities: Path
) -> None:
    with redis.Redis(port=node.port, **options(authorities)) as client:
        with pytest.raises(redis.ResponseError, match="unknown subcommand 'MAINT_NOTIFICATIONS'"):
            client.execute_command("CLIENT", "MAINT_NOTIFICATIONS", "ON")
        assert client.ping()
