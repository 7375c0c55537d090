"""A shipper that is told of authorities speaks TLS with servers that they signed, and no others."""

import asyncio
from pathlib import Path

import trustme

from raftwood.base.environment import Environment
from raftwood.base.metrics import Metrics
from raftwood.clogs.client.shipper import open_shipper
from raftwood.clogs.receiver import Receiver, ReceiverLimits
from raftwood.net import Identity, Secret, ServerTls, TlsFiles
from tests.kits.clogs.memory_sink import MemorySink, MemoryStorage
from tests.kits.clogs.ring import SECRET, Ring, settings_of
from tests.unit.clogs.client.test_shipper import given, scene


def _files(folder: Path, authority: trustme.CA) -> TlsFiles:
    certificate = authority.issue_cert("127.0.0.1")
    key, chain = str(folder / "key.pem"), str(folder / "certificate.pem")
    certificate.private_key_pem.write_to_path(key)
    certificate.cert_chain_pems[0].write_to_path(chain)
    return TlsFiles(certificate=chain, key=key)


def _secret_of(_: Identity) -> Secret:
    return Secret(SECRET)


def test_lines_travel_by_tls_to_servers_that_are_trusted_alone(tmp_path: Path) -> None:
    authority, stranger = trustme.CA(), trustme.CA()
    trusted, other = str(tmp_path / "authority.pem"), str(tmp_path / "stranger.pem")
    authority.cert_pem.write_to_path(trusted)
    stranger.cert_pem.write_to_path(other)

    async def body(environment: Environment, ring: Ring) -> None:
        del ring
        storage = MemoryStorage()
        receiver = Receiver(
            environment,
            MemorySink(storage),
            secret_of=_secret_of,
            limits=ReceiverLimits(),
            metrics=Metrics(),
        )
        tls = ServerTls(_files(tmp_path, authority))
        port = await receiver.listen("127.0.0.1", 0, tls=tls)
        servers = (f"127.0.0.1:{port}",)
        try:
            settings = settings_of(servers=servers, authorities=trusted)
            async with await open_shipper(environment, settings) as shipper:
                await shipper.send("a.log", given("a.log", 0, 9))
            for authorities in (other, ""):
                settings = settings_of(servers=servers, authorities=authorities, exit_ms=0)
                async with await open_shipper(environment, settings) as shipper:
                    delivery = shipper.send("a.log", given("a.log", 9, 10))
                    await asyncio.sleep(0.3)
                    assert not delivery.is_done
                    assert not any(each.is_connected for each in shipper.status().servers)
            assert storage.lines("a.log") == given("a.log", 0, 9)
        finally:
            await receiver.close(drain_ms=0)

    scene(body, servers=0)
