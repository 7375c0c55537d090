"""A receiver in a real process: what it acknowledged is stored once, though the process is killed
and its shipper sends all again."""

import asyncio
import json
import random
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from raftwood.base.compression import Codec, compress
from raftwood.clogs.frames import ClogsMessage, MessageType, decode_message, encode_message
from raftwood.clogs.lines import encode_lines
from raftwood.clogs.wire import CLUSTER, KEY_ROLE, PING, STORE
from raftwood.loghub.model import LogKind
from raftwood.net import ClientCredentials, Connection, Identity, Secret, connect
from raftwood.server.standalone import PORTS
from tests.kits.ports import consecutive_ports
from tests.kits.processes import RAFTWOOD, RealProcess
from tests.kits.server.running import connected

FILES = ("/var/log/a.log", "/var/log/b.log")
BATCHES = 6


def standalone(folder: Path) -> RealProcess:
    arguments = (
        f"--data={folder / 'data'}",
        f"--port-base={consecutive_ports(PORTS)}",
        f"--set=clogs.routes=*a.log=p/{LogKind.LOGSERVICE.value},*b.log=p/{LogKind.DLOG.value}",
        "--set=clogs.store=both",
        f"--set=clogs.files_folder={folder / 'files'}",
    )
    return RealProcess("standalone", folder, (*RAFTWOOD, "standalone", *arguments))


@contextmanager
def started(process: RealProcess) -> Iterator[dict[str, Any]]:
    """Killed with -9 at the end."""
    try:
        process.start()
        yield json.loads(process.ready_file.read_text())
    finally:
        process.discard()


async def connection_to(parts: dict[str, Any]) -> Connection:
    (address,) = parts["clogs"]
    host, _, port = address.rpartition(":")
    credentials = ClientCredentials(
        cluster_id=CLUSTER,
        identity=Identity(role=KEY_ROLE, node_id=parts["loghub"]["access_key_id"]),
        secret=Secret(parts["loghub"]["access_key_secret"].encode()),
    )
    return await connect(host, int(port), credentials, random.Random(1))


async def ask(connection: Connection, message: ClogsMessage) -> ClogsMessage:
    method = PING if message.type is MessageType.PING else STORE
    payload = b"".join(encode_message(message))
    return decode_message(await connection.call(method, payload, timeout_ms=60_000))


def batch(name: str, sequence: int, place: str) -> ClogsMessage:
    lines = [f"{name} {sequence}.{number}".encode() for number in range(3)]
    raw = encode_lines(lines, time_ns=1_700_000_000_000_000_000, topic=name)
    return ClogsMessage(
        type=MessageType.DATA,
        name=name,
        producer=name.encode().ljust(16)[:16],
        sequence=sequence,
        count=len(lines),
        raw_bytes=len(raw),
        codec=Codec.ZSTD,
        is_resumed=not place,
        place=place,
        body=compress(raw, Codec.ZSTD),
    )


async def ship(parts: dict[str, Any], places: dict[str, str], *, batches: int) -> None:
    """All files' batches from the first on; places are asked for where they are not known."""
    async with await connection_to(parts) as connection:
        assert (
            await ask(connection, ClogsMessage(type=MessageType.PING, sequence=7))
        ).sequence == 8
        for name in FILES:
            if name not in places:
                located = await ask(connection, ClogsMessage(type=MessageType.LOCATE, name=name))
                places[name] = located.place
            for sequence in range(1, batches + 1):
                ack = await ask(connection, batch(name, sequence, places[name]))
                assert (ack.type, ack.sequence) == (MessageType.ACK, sequence)


def test_what_was_acknowledged_is_stored_once_though_the_receiver_is_killed(
    tmp_path: Path,
) -> None:
    process = standalone(tmp_path)
    places: dict[str, str] = {}
    with started(process) as parts:
        with connected(parts) as client:
            client.create_project("p")
            for kind in LogKind:
                client.create_logstore("p", kind.value, shard_count=1, log=kind)
        asyncio.run(ship(parts, places, batches=BATCHES))
    with started(process) as parts, connected(parts) as client:
        # A shipper that goes on, and then one that knows nothing of where it sent.
        asyncio.run(ship(parts, places, batches=BATCHES))
        asyncio.run(ship(parts, dict.fromkeys(FILES, ""), batches=BATCHES + 1))
        for name, kind in zip(FILES, (LogKind.LOGSERVICE, LogKind.DLOG), strict=True):
            expected = [
                f"{name} {sequence}.{number}"
                for sequence in range(1, BATCHES + 2)
                for number in range(3)
            ]
            with client.reader("p", kind.value) as reader:
                assert [record.contents["message"] for record in reader] == expected
            file = tmp_path / "files" / "%2Fvar" / "log" / name.rpartition("/")[2]
            assert file.read_text().splitlines() == expected
