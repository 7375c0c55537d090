"""What a shipper has done, in lines: by server, and in all. Nothing leaves it uncounted.

Of the lines taken, each is acked, dropped, refused, or still held. `retried` counts lines that were
sent again, `spooled` those that were written to the spool.
"""

from typing import Final

import msgspec
from msgspec.structs import replace

NO_SERVER: Final = "-"
"""Where no server was known yet."""
SERVERS_MAX: Final = 4096


class ServerCounters(msgspec.Struct):
    """Lines of the files that were this server's at that moment."""

    sent: int = 0
    acked: int = 0
    retried: int = 0
    spooled: int = 0
    dropped: int = 0


class Counters(msgspec.Struct):
    """All of a shipper's."""

    taken: int = 0
    acked: int = 0
    dropped: int = 0
    refused: int = 0
    """A receiver will never take them as they are, as in a batch that is too large for it."""
    cut: int = 0
    """Lines that were longer than the limit, and stored as far as it goes."""
    resumed: int = 0
    """Found in the spool at the start: they count as taken by an earlier life."""
    servers: dict[str, ServerCounters] = {}

    def copied(self) -> "Counters":
        """As they are now: who looks at them in another thread finds that they add up."""
        servers = {name: replace(each) for name, each in self.servers.items()}
        return replace(self, servers=servers)

    def server(self, name: str | None) -> ServerCounters:
        name = name or NO_SERVER
        found = self.servers.get(name)
        if found is None:
            if len(self.servers) >= SERVERS_MAX:
                name = NO_SERVER
            found = self.servers.setdefault(name, ServerCounters())
        return found
