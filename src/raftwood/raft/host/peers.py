"""The other stores: a connection to each, and whether they are heard from."""

from collections.abc import Callable, Sequence

from raftwood.base.environment import Environment
from raftwood.base.errors import RaftwoodError
from raftwood.base.files import Buffer
from raftwood.base.logs import get_logger
from raftwood.net import Backoff, Channel, Connection, Identity
from raftwood.net.store_names import store_of
from raftwood.raft.host.protocol import (
    INTRODUCE,
    PING,
    RAFT_FRAME,
    HostNetwork,
    encode_ping,
)

_log = get_logger("raft")
_BACKOFF = Backoff(first_ms=20, longest_ms=500)
"""Short: a store that is back is needed at once."""


class Peer:
    """One other store."""

    __slots__ = (
        "address",
        "channel",
        "epoch",
        "is_lost",
        "knows_sync_times",
        "refusal",
        "silent_ticks",
        "sync_ms",
        "voice",
    )

    def __init__(self, address: str, channel: Channel) -> None:
        self.address = address
        self.channel = channel
        self.epoch: int | None = None
        """Which start of the store was heard from last; None where it was not accepted yet."""
        self.voice: Identity | None = None
        """Of the connection that it introduced itself on last, and no other one that is equal."""
        self.silent_ticks = 0
        self.is_lost = False
        self.refusal = ""
        """Why it does not let this store in, as it was told last."""
        self.knows_sync_times = False
        self.sync_ms: int | None = None
        """How long a sync takes there, as its last ping told."""


class Peers:
    """Connections by store, made as addresses become known."""

    def __init__(
        self,
        environment: Environment,
        network: HostNetwork,
        *,
        own: int,
        introduce: Callable[[], bytes],
        on_unreachable: Callable[[int], None],
        on_gone: Callable[[int], None],
    ) -> None:
        self._environment = environment
        self._network = network
        self._own = own
        self._introduce = introduce
        self._on_unreachable = on_unreachable
        self._on_gone = on_gone
        self._peers: dict[int, Peer] = {}
        self._closing: list[Channel] = []

    def __contains__(self, store: int) -> bool:
        return store in self._peers

    def refusals(self) -> dict[int, str]:
        """Stores that do not let this one in, and why."""
        return {store: peer.refusal for store, peer in self._peers.items() if peer.refusal}

    def addresses(self) -> dict[int, str]:
        return {store: peer.address for store, peer in self._peers.items()}

    def get(self, store: int) -> Peer | None:
        return self._peers.get(store)

    def sync_ms(self, store: int) -> int | None:
        """How long a sync takes at a store, as it told; None where that is not known."""
        peer = self._peers.get(store)
        return None if peer is None or peer.is_lost else peer.sync_ms

    def is_connected(self, store: int) -> bool:
        peer = self._peers.get(store)
        return peer is not None and peer.channel.is_connected

    def set_address(self, store: int, address: str) -> None:
        """Reach a store there from now on."""
        if store == self._own:
            return
        known = self._peers.get(store)
        if known is not None:
            if known.address == address:
                return
            self._closing.append(known.channel)

        async def dial() -> Connection:
            return await self._network.dial(self._environment, address, own=self._own, peer=store)

        def on_change(is_connected: bool) -> None:
            if is_connected:
                channel.send(INTRODUCE, self._introduce())
            else:
                self._on_unreachable(store)

        channel = Channel(
            dial,
            self._environment.random,
            _BACKOFF,
            on_change=on_change,
            on_gone=lambda: self._on_gone(store),
        )
        peer = self._peers[store] = Peer(address, channel)
        if known is not None:
            peer.epoch, peer.voice = known.epoch, known.voice
            peer.knows_sync_times, peer.sync_ms = known.knows_sync_times, known.sync_ms
        channel.start()

    def introduce_again(self) -> None:
        """What this store says of itself has changed."""
        for peer in self._peers.values():
            peer.channel.send(INTRODUCE, self._introduce())

    def send(self, store: int, frame: Sequence[Buffer]) -> None:
        """A raft frame; one that cannot be sent is lost, which raft makes good."""
        peer = self._peers.get(store)
        if (
            peer is not None
            and not peer.channel.send(RAFT_FRAME, frame)
            and peer.channel.is_connected
        ):
            # It takes less than it is sent. A loss of the connection was told when it came.
            self._on_unreachable(store)

    def heard(self, identity: Identity) -> bool:
        """Something came on a connection of a store; answers whether it may speak there.

        Each connection has an identity object of its own. What comes late on an older connection,
        or on one of another store under the same number, is not heard.
        """
        peer = self._peers.get(store_of(identity))
        if peer is None or peer.voice is not identity:
            return False
        peer.silent_ticks = 0
        peer.is_lost = False
        return True

    async def tick(self, silent_ticks_max: int, sync_ms: int | None = None) -> list[int]:
        """Say that this store lives; answers who was not heard from for too long, once."""
        lost = []
        ping = encode_ping(sync_ms)
        for store, peer in self._peers.items():
            peer.channel.send(PING, ping if peer.knows_sync_times else b"")
            self._note_refusal(store, peer)
            peer.silent_ticks += 1
            if peer.silent_ticks > silent_ticks_max and not peer.is_lost:
                peer.is_lost = True
                lost.append(store)
        while self._closing:
            await self._closing.pop().close()
        return lost

    def _note_refusal(self, store: int, peer: Peer) -> None:
        """Tell once what trying again does not mend: another secret, cluster or data folder."""
        error = peer.channel.last_error
        if error is None:
            return
        reason = error.__cause__ if isinstance(error.__cause__, RaftwoodError) else error
        if not reason.retriable and reason.message != peer.refusal:
            peer.refusal = reason.message
            _log.error("refused by a store", peer=store, reason=reason.message)

    async def close(self) -> None:
        for channel in [*self._closing, *(peer.channel for peer in self._peers.values())]:
            await channel.close()
