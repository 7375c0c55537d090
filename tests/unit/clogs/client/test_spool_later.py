"""A shipper whose spool has no room at first."""

import asyncio
import errno
from pathlib import Path

import pytest

from raftwood.base import files as seam
from raftwood.base.files import Operation
from raftwood.clogs.client import shipper as shipper_module
from raftwood.clogs.client.shipper import AsyncShipper
from raftwood.disk.real_environment import ThreadFiles, real_environment
from tests.kits.clogs.ring import ACCESS, Ring, StaticSource, settings_of


def test_lines_are_shipped_without_a_spool_until_there_is_room_for_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(shipper_module, "_SPOOL_RETRY_S", 0.02)
    is_full = True
    write = ThreadFiles._write_operation

    def full(files: ThreadFiles, operation: Operation) -> object:
        if is_full and isinstance(operation, seam.Preallocate):
            raise OSError(errno.ENOSPC, "no room")
        return write(files, operation)

    monkeypatch.setattr(ThreadFiles, "_write_operation", full)

    async def main() -> None:
        nonlocal is_full
        settings = settings_of(spool="always", spool_folder=f"{tmp_path}/spool")
        with real_environment() as environment:
            ring = Ring(environment)
            await ring.start("log-0")
            source = StaticSource(ring.configuration())
            async with await AsyncShipper.start(environment, settings, ACCESS, source) as shipper:
                await shipper.send("a.log", [b"one"])
                assert shipper.counters.server("log-0").spooled == 0
                is_full = False
                async with asyncio.timeout(60):
                    while not shipper.counters.server("log-0").spooled:
                        await asyncio.sleep(0.02)
                        await shipper.send("a.log", [b"two"])
            # One that never gets a spool is closed all the same.
            is_full = True
            source = StaticSource(ring.configuration())
            settings = settings_of(spool="always", spool_folder=f"{tmp_path}/other")
            async with await AsyncShipper.start(environment, settings, ACCESS, source) as shipper:
                await shipper.send("a.log", [b"three"])
            assert ring.storage.lines("a.log")[0] == b"one"
            assert ring.storage.lines("a.log")[-1] == b"three"
            await ring.close()

    asyncio.run(main())
