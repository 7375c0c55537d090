"""What a store remembers of the others: their addresses, and which folders they run on.

A store whose disk was wiped has forgotten its votes and what it acknowledged. It must not speak
under its old number again, so that a number belongs to the folder that was heard from first.
"""

from typing import Final

import msgspec

from raftwood.base.errors import (
    Conflict,
    DiskFull,
    Overloaded,
    RaftwoodError,
    StoreDamaged,
    UnsupportedVersion,
)
from raftwood.base.logs import get_logger
from raftwood.disk.segment_log import SegmentLog, State

HOST_GROUP: Final = (1 << 63) - 1
"""The log's group for the host's own record."""
GROUP_MAX: Final = (1 << 62) - 1
BOOK_VERSION: Final = 1

_log = get_logger("raft")


class _Book(msgspec.Struct, frozen=True, array_like=True):
    version: int
    addresses: dict[int, str]
    incarnations: dict[int, str]


class StoreBook:
    """Kept in the log, before whatever is written on the word of a store that it tells of."""

    def __init__(self, log: SegmentLog) -> None:
        self._log = log
        data = log.state(HOST_GROUP) if HOST_GROUP in log.groups() else None
        book = _decode(data) if data is not None else _Book(BOOK_VERSION, {}, {})
        self.addresses: dict[int, str] = book.addresses
        self._incarnations: dict[int, str] = book.incarnations

    def set_addresses(self, addresses: dict[int, str]) -> None:
        """Note addresses; for the time being only in memory where the log has no room."""
        if any(self.addresses.get(store) != address for store, address in addresses.items()):
            self.addresses |= addresses
            try:
                self._save()
            except (DiskFull, Overloaded) as error:
                # The groups' own logs and snapshots tell them again at the next start.
                _log.warning("addresses not stored", reason=error.message)

    def admit(self, store: int, incarnation: str) -> None:
        """Note a store's folder at the first contact; `Conflict` for another one later."""
        known = self._incarnations.get(store)
        if known is None:
            self._incarnations[store] = incarnation
            try:
                self._save()
            except RaftwoodError:
                del self._incarnations[store]  # it is refused now, and comes again
                raise
        elif known != incarnation:
            raise Conflict(
                f"store {store} comes with another data folder than before: a store that has lost "
                "its data joins with a new number, and the old number is removed from its groups"
            )

    def _save(self) -> None:
        book = _Book(BOOK_VERSION, self.addresses, self._incarnations)
        self._log.write((State(HOST_GROUP, msgspec.msgpack.encode(book)),))


def _decode(data: bytes) -> _Book:
    try:
        fields = msgspec.msgpack.decode(data)
        if isinstance(fields, list) and fields and fields[0] != BOOK_VERSION:
            raise UnsupportedVersion(
                f"the store's book is of version {fields[0]}, this program reads {BOOK_VERSION}: "
                "use a newer program"
            )
        return msgspec.convert(fields, _Book)
    except (msgspec.MsgspecError, ValueError) as error:
        raise StoreDamaged("the store's book of other stores cannot be read") from error
