"""The store's registry of other stores: their addresses, and the data folders that they run on.

A store whose disk was wiped has forgotten its votes and acknowledgements. It must not take part
again under its old number, so each number belongs to the folder that first made contact.
"""

from collections.abc import Mapping
from contextlib import suppress
from typing import Final

import msgspec

from raftwood.base.errors import (
    Conflict,
    DiskFull,
    Overloaded,
    RaftwoodError,
    StoreDamaged,
)
from raftwood.base.logs import get_logger
from raftwood.base.versions import decode_versioned
from raftwood.disk.segment_log import SegmentLog, SetState

HOST_GROUP: Final = (1 << 63) - 1
"""The log's group for the host's own record."""
GROUP_MAX: Final = (1 << 62) - 1
REGISTRY_VERSION: Final = 1

_log = get_logger("raft")


class _Registry(msgspec.Struct, frozen=True, array_like=True):
    version: int
    addresses: dict[int, str]
    incarnations: dict[int, str]
    damage: str = ""


class StoreRegistry:
    """The registry, stored in the log before any record that depends on a store in it."""

    def __init__(self, log: SegmentLog) -> None:
        self._log = log
        data = log.state(HOST_GROUP) if HOST_GROUP in log.groups() else None
        book = decode_registry(data) if data is not None else _Registry(REGISTRY_VERSION, {}, {})
        self.addresses: dict[int, str] = book.addresses
        self._incarnations: dict[int, str] = book.incarnations
        self.damage = book.damage
        """The damage, set for good once the store's log was damaged and set aside. Any group may be
        one whose records were lost with it (`damaged_log`)."""

    def set_addresses(self, addresses: dict[int, str]) -> None:
        """Notes addresses; only in memory for the time being if the log has no room."""
        if any(self.addresses.get(store) != address for store, address in addresses.items()):
            self.addresses |= addresses
            try:
                self._save()
            except (DiskFull, Overloaded) as error:
                # The groups' own logs and snapshots contain them at the next start.
                _log.warning("addresses not stored", reason=error.message)

    def admit(self, store: int, incarnation: str) -> None:
        """Notes a store's folder at the first contact; `Conflict` for another one later."""
        known = self._incarnations.get(store)
        if known is None:
            self._incarnations[store] = incarnation
            try:
                self._save()
            except RaftwoodError:
                del self._incarnations[store]  # The store is refused now, and tries again.
                raise
        elif known != incarnation:
            raise Conflict(
                f"store {store} comes with another data folder than before. If its data is lost, "
                f"{how_to_replace(store)}"
            )

    def _save(self) -> None:
        book = _Registry(REGISTRY_VERSION, self.addresses, self._incarnations, self.damage)
        self._log.write((SetState(HOST_GROUP, msgspec.msgpack.encode(book)),))


def how_to_replace(store: int | str) -> str:
    """The operator's remedy for a store that cannot come back under its number."""
    return (
        "start another store in its place: 'raftwood serve --join' or 'raftwood logservice start "
        "--join', with a new node.store_id and an empty node.data_folder. Then run 'raftwood raft "
        f"replace {store} NEW HOST:PORT --group GROUP' for each group of raftwood serve; a log "
        f"service replaces the store by itself, and 'raftwood cluster forget {store}' ends it"
    )


def how_to_recover(group: int) -> str:
    """The operator's remedy for a group that has lost its quorum for good."""
    return (
        "stop all of its stores, and for the one whose copy has most run 'raftwood raft recover "
        f"--data-folder FOLDER --group {group} --members STORE=HOST:PORT'"
    )


def registry_after_damage(
    data: bytes | None, *, peers: Mapping[int, str], damage: str
) -> tuple[dict[int, str], bytes]:
    """Makes the registry of a store whose log was damaged: the rest of the old one, and the damage.

    Returns the addresses in it, and the encoded registry.
    """
    book = _Registry(REGISTRY_VERSION, {}, {})
    if data is not None:
        with suppress(StoreDamaged):
            book = decode_registry(data)
    addresses = {**peers, **book.addresses}  # other stores know newer ones
    after = _Registry(REGISTRY_VERSION, addresses, book.incarnations, damage)
    return addresses, msgspec.msgpack.encode(after)


def decode_registry(data: bytes) -> _Registry:
    return decode_versioned(
        data,
        _Registry,
        version=REGISTRY_VERSION,
        name="the store's book of other stores",
    )
