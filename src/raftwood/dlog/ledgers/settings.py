"""`LedgerSettings`: how long the quorum client waits, and how much it has under way."""

import msgspec

from raftwood.base.errors import InvalidConfiguration


class LedgerSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The defaults suit bookies in one data centre."""

    add_timeout_ms: int = 2_000
    """A bookie that has answered no add for so long is replaced as if it were dead."""
    read_timeout_ms: int = 3_000
    """One bookie's time for one answer."""
    speculative_read_ms: int = 20
    """After so long the next replica is asked too."""
    overload_pause_ms: int = 20
    """Before an add is sent again to a bookie that had too much to do."""
    change_timeout_ms: int = 10_000
    """Appends fail with `NotEnoughBookies` after they could not go on for so long."""
    change_retry_ms: int = 500
    """How often bookies are looked for while there are too few."""
    quarantine_ms: int = 30_000
    """A bookie that failed is avoided for so long, where there are others."""
    entries_under_way_max: int = 10_000
    """Of one writer; above it, `Overloaded`."""
    bytes_under_way_max: int = 128 << 20
    """As above; an entry alone may be larger. Well above what a log has under way, whose entries
    have heads and snapshots beside the messages that it counts."""
    lag_bytes_max: int = 64 << 20
    """A bookie that is so far behind the others is replaced: memory holds what it has not got."""
    read_window: int = 64
    """Entries that one read, or a recovery, asks for at once."""
    metadata_tries: int = 5

    def __post_init__(self) -> None:
        for name in self.__struct_fields__:
            if getattr(self, name) <= 0:
                raise InvalidConfiguration(f"{name} = {getattr(self, name)}: give a number above 0")
