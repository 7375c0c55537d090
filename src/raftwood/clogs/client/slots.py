"""Which folder of a spool a process has: the first that nobody else has, and those left behind.

Processes share the folder that is configured: each has a slot in it, locked while it lives.
Whoever starts also takes the slots that were left with something in them, and ships that too.
"""

from typing import Final

import msgspec

from raftwood.base import files as seam
from raftwood.base.environment import Environment
from raftwood.base.errors import InvalidInput, StoreDamaged, StoreLocked, UnsupportedVersion
from raftwood.base.files import perform
from raftwood.base.logs import get_logger
from raftwood.clogs.client.spool import REMEDY, Spool, readable_lines
from raftwood.disk.explaining import explained

SLOTS_MAX: Final = 256

_log = get_logger("clogs")


class Slots(msgspec.Struct, frozen=True):
    """The spools of a process: its own, and those that others left with something in them."""

    own: Spool
    left: list[Spool]


async def open_slots(environment: Environment, folder: str, *, bytes_max: int) -> Slots:
    """The first slot that is free, and all others that are free and not empty.

    A slot that cannot be read is left for somebody to look at. `InvalidInput` where the folder
    cannot be used, or all slots are in use.
    """
    folder = folder.rstrip("/") or "/"
    with explained(folder):
        await perform(environment.files, seam.MakeDirectory(folder))
        (names,) = await perform(environment.files, seam.ListDirectory(folder))
    known = {int(name) for name in names or () if name.isdecimal()}
    own: Spool | None = None
    left: list[Spool] = []
    try:
        for number in range(SLOTS_MAX):
            if own is not None and number not in known:
                continue
            path = f"{folder}/{number}"
            try:
                spool = await Spool.open(environment, path, bytes_max=bytes_max)
            except StoreLocked:
                continue
            except UnsupportedVersion as error:
                _log.error("a slot of the spool is not used", folder=path, reason=error.message)
                continue
            except StoreDamaged as error:
                with explained(path):
                    lines = await readable_lines(environment.files, path)
                _log.error(
                    "a slot of the spool is damaged and left alone: its lines are not shipped",
                    folder=path,
                    lines_that_can_be_read=lines,
                    reason=error.message,
                    remedy=REMEDY,
                )
                continue
            if own is None:
                own = spool
            elif spool.has_content:
                left.append(spool)
            else:
                await spool.close()
    except BaseException:
        for spool in [*left, *([own] if own else [])]:
            await spool.close()
        raise
    if own is None:
        raise InvalidInput(
            f"all {SLOTS_MAX} slots of the spool {folder} are in use: give another spool_folder"
        )
    return Slots(own, left)
