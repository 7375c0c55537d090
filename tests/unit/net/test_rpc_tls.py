"""TLS and mutual TLS, and renewal of certificates without a restart."""

import asyncio
import pathlib

import pytest
import trustme
from tests.kits.net.rpc import (
    CLIENT,
    CLUSTER,
    ECHO,
    NODE,
    OPERATOR,
    TELL,
    Handlers,
    dial,
    serving,
)
from tests.kits.running import until
from tests.unit.net.conftest import Run

from raftwood.base.errors import InvalidConfiguration, Unauthenticated, Unavailable
from raftwood.net import ClientCredentials, ClientLimits, ClientTls, Identity, ServerTls, TlsFiles

BY_CERTIFICATE = ClientCredentials(cluster_id=CLUSTER, identity=CLIENT)


class Files:
    """Certificate files of one authority below a folder."""

    def __init__(self, folder: pathlib.Path) -> None:
        self.folder = folder
        self.authority = trustme.CA()
        self.authorities = str(folder / "authorities.pem")
        self.authority.cert_pem.write_to_path(self.authorities)

    def issue(self, identity: Identity, name: str = "localhost", cluster: str = CLUSTER) -> None:
        """Write, or write anew, the certificate and key of an identity."""
        issued = self.authority.issue_cert(
            name,
            common_name=identity.node_id,
            organization_name=cluster,
            organization_unit_name=identity.role,
        )
        path = self.folder / f"{identity.node_id}.pem"
        issued.private_key_and_cert_chain_pem.write_to_path(str(path))

    def of(self, identity: Identity | None, *, trusting: bool = True) -> TlsFiles:
        return TlsFiles(
            certificate=str(self.folder / f"{identity.node_id}.pem") if identity else None,
            authorities=self.authorities if trusting else None,
        )


@pytest.fixture
def files(tmp_path: pathlib.Path) -> Files:
    made = Files(tmp_path)
    for identity in (NODE, CLIENT, OPERATOR):
        made.issue(identity)
    return made


def test_calls_of_all_sizes_go_through_tls(run: Run, files: Files) -> None:
    async def main() -> None:
        tls = ServerTls(files.of(NODE, trusting=False))
        async with (
            serving(Handlers().service, tls=tls) as (_, port),
            await dial(port, tls=ClientTls(files.of(None))) as connection,
        ):
            for size in (0, 100, 20_000, 65_536, 1 << 20):
                assert await connection.call(ECHO, bytes(size), 60_000) == bytes(size)

    run(main())


def test_one_way_messages_go_through_tls_with_the_certificates_identity(
    run: Run, files: Files
) -> None:
    async def main() -> None:
        handlers = Handlers()
        async with (
            serving(handlers.service, tls=ServerTls(files.of(NODE))) as (_, port),
            await dial(
                port, tls=ClientTls(files.of(CLIENT)), credentials=BY_CERTIFICATE
            ) as connection,
        ):
            payloads = [bytes(size) for size in (0, 100, 20_000, 65_536, 8 << 20)]
            for payload in payloads:
                assert connection.send(TELL, [payload[:10], payload[10:]])
            await until(lambda: len(handlers.told) == len(payloads))
            assert handlers.told == [(CLIENT, payload) for payload in payloads]

    run(main())


def test_unsent_messages_are_bounded_through_tls(run: Run, files: Files) -> None:
    async def main() -> None:
        handlers = Handlers()
        limit = 4 << 20
        async with (
            serving(handlers.service, tls=ServerTls(files.of(NODE, trusting=False))) as (
                server,
                port,
            ),
            await dial(
                port,
                tls=ClientTls(files.of(None)),
                limits=ClientLimits(unsent_bytes_max=limit),
            ) as connection,
        ):
            await connection.call(ECHO, b"", 60_000)
            (session,) = server._sessions
            assert session._transport is not None
            session._transport.pause_reading()
            sent = 0
            while connection.send(TELL, bytes(100_000)):
                sent += 1
                # Below it are the two sockets' buffers and what the two layers of TLS read ahead.
                assert sent * 100_000 < limit + (32 << 20)
                await asyncio.sleep(0)
            session._transport.resume_reading()
            await until(lambda: len(handlers.told) == sent)
            assert connection.send(TELL, b"room again")
            await until(lambda: len(handlers.told) == sent + 1)

    run(main())


def test_a_server_of_another_authority_is_not_trusted(
    run: Run, files: Files, tmp_path: pathlib.Path
) -> None:
    async def main() -> None:
        (tmp_path / "other").mkdir()
        other = Files(tmp_path / "other")
        async with serving(Handlers().service, tls=ServerTls(files.of(NODE, trusting=False))) as (
            server,
            port,
        ):
            with pytest.raises(Unauthenticated):
                await dial(port, tls=ClientTls(other.of(None)))
            assert server.connection_count == 0

    run(main())


def test_the_host_name_is_checked(run: Run, files: Files) -> None:
    async def main() -> None:
        files.issue(NODE, name="elsewhere.example")
        async with serving(Handlers().service, tls=ServerTls(files.of(NODE, trusting=False))) as (
            _,
            port,
        ):
            with pytest.raises(Unauthenticated):
                await dial(port, tls=ClientTls(files.of(None)))

    run(main())


def test_a_certificate_is_the_identity_under_mutual_tls(run: Run, files: Files) -> None:
    async def main() -> None:
        handlers = Handlers()
        handlers.service._entries[ECHO.number].handler = lambda call, _: call.reply(
            str(call.peer).encode()
        )
        async with (
            serving(handlers.service, tls=ServerTls(files.of(NODE))) as (_, port),
            await dial(
                port, credentials=BY_CERTIFICATE, tls=ClientTls(files.of(CLIENT))
            ) as connection,
        ):
            assert await connection.call(ECHO, b"", 60_000) == b"client/c1"
            assert connection.server == NODE

    run(main())


def test_a_certificate_does_not_lend_itself_to_another_identity(run: Run, files: Files) -> None:
    async def main() -> None:
        async with serving(Handlers().service, tls=ServerTls(files.of(NODE))) as (server, port):
            with pytest.raises(Unauthenticated):
                await dial(port, credentials=BY_CERTIFICATE, tls=ClientTls(files.of(OPERATOR)))
            await until(lambda: server.connection_count == 0)

    run(main())


def test_mutual_tls_refuses_a_client_without_a_certificate(run: Run, files: Files) -> None:
    async def main() -> None:
        async with serving(Handlers().service, tls=ServerTls(files.of(NODE))) as (server, port):
            with pytest.raises((Unauthenticated, Unavailable)):
                await dial(port, tls=ClientTls(files.of(None)))
            await until(lambda: server.connection_count == 0)

    run(main())


def test_a_claim_of_a_certificate_without_tls_is_refused(run: Run) -> None:
    async def main() -> None:
        async with serving(Handlers().service) as (_, port):
            with pytest.raises(Unauthenticated):
                await dial(port, credentials=BY_CERTIFICATE)

    run(main())


def test_renewed_certificates_serve_new_connections_without_a_restart(
    run: Run, files: Files
) -> None:
    async def main() -> None:
        tls = ServerTls(files.of(NODE))
        client_tls = ClientTls(files.of(CLIENT))
        async with serving(Handlers().service, tls=tls) as (_, port):
            standing = await dial(port, credentials=BY_CERTIFICATE, tls=client_tls)
            # A new authority signs everything anew, and the old one is no longer trusted.
            renewed = Files(files.folder)
            for identity in (NODE, CLIENT):
                renewed.issue(identity)
            tls.reload()
            with pytest.raises((Unauthenticated, Unavailable)):
                await dial(port, credentials=BY_CERTIFICATE, tls=client_tls)
            client_tls.reload()
            async with await dial(port, credentials=BY_CERTIFICATE, tls=client_tls) as connection:
                assert await connection.call(ECHO, b"new", 60_000) == b"new"
            assert await standing.call(ECHO, b"old", 60_000) == b"old"
            await standing.close()

    run(main())


def test_an_authority_that_is_no_longer_trusted_lets_nobody_in(run: Run, files: Files) -> None:
    async def main() -> None:
        tls = ServerTls(files.of(NODE))
        client_tls = ClientTls(files.of(CLIENT))
        async with serving(Handlers().service, tls=tls) as (_, port):
            # Only the server's trust changes: its own certificate stays valid for the client.
            other = trustme.CA()
            other.cert_pem.write_to_path(files.authorities)
            tls.reload()
            with pytest.raises((Unauthenticated, Unavailable)):
                await dial(port, credentials=BY_CERTIFICATE, tls=client_tls)

    run(main())


def test_broken_files_are_refused_and_the_old_ones_kept(run: Run, files: Files) -> None:
    async def main() -> None:
        tls = ServerTls(files.of(NODE, trusting=False))
        client_tls = ClientTls(files.of(None))
        async with serving(Handlers().service, tls=tls) as (_, port):
            (files.folder / "n1.pem").write_text("broken")
            with pytest.raises(InvalidConfiguration, match=r"n1\.pem"):
                tls.reload()
            (files.folder / "authorities.pem").write_text("broken")
            with pytest.raises(InvalidConfiguration, match="authorities"):
                client_tls.reload()
            async with await dial(port, tls=client_tls) as connection:
                assert await connection.call(ECHO, b"kept", 60_000) == b"kept"
        with pytest.raises(InvalidConfiguration):
            ServerTls(TlsFiles())

    run(main())
