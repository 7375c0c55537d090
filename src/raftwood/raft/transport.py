"""Transport between stores: methods and frames, a connection to each store, and its liveness.

One frame holds a turn's messages of all groups. Little-endian:

    frame    magic "RWM" and the version (4), count of messages (4), heads, payloads of the runs
    head     group (8), kind (1), rejected (1), bytes of the context (2), source (8), term (8),
             log term (8), index (8), commit (8), reject hint (8), count of runs (4);
             then the context; then for each run its term (8), count (4) and bytes (4)

The runs of an append follow its index without a gap. The receiver of a frame is its messages'
target. Kinds that never leave their node, forwarded proposals and snapshots are refused: a peer
that could say "your write is durable" would bypass every promise. Tests: test_host_formats::
test_what_never_leaves_its_node_is_refused, test_host_formats::test_a_frame_cut_anywhere_is_refused
"""

import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import msgspec

from raftwood.base.backoff import Backoff
from raftwood.base.environment import Environment
from raftwood.base.errors import ProtocolError, RaftwoodError
from raftwood.base.files import Buffer
from raftwood.base.logs import get_logger
from raftwood.net import (
    Channel,
    ClientCredentials,
    ClientLimits,
    ClientTls,
    Connection,
    Identity,
    Method,
    Payload,
    Secret,
    ServerCredentials,
    connect,
)
from raftwood.net.identity import (
    CLIENT_ROLE,
    OPERATOR_ROLE,
    READER_ROLE,
    STORE_ROLE,
    split_address,
    store_identity,
    store_of,
)
from raftwood.net.method_numbers import MethodNumber
from raftwood.raft.core import Entry, Message, MessageKind
from raftwood.raft.core.messages import NO_ENTRIES
from raftwood.raft.entry_format import EncodedRun, RunCache, decode_run

_STORES = (STORE_ROLE,)
GROUP_BYTES = 8
SYNC_MS_MAX: Final = (1 << 32) - 1

RAFT_FRAME = Method(MethodNumber.RAFT_FRAME, "raft-frame", roles=_STORES)
INTRODUCE = Method(MethodNumber.INTRODUCE, "introduce", roles=_STORES)
PING = Method(MethodNumber.PING, "ping", roles=_STORES)
SLEEP = Method(MethodNumber.SLEEP, "sleep", roles=_STORES)
REMOVED = Method(MethodNumber.REMOVED, "removed", roles=_STORES)
ASK_MEMBERSHIP = Method(MethodNumber.ASK_MEMBERSHIP, "ask-membership", roles=_STORES)


class Introduction(msgspec.Struct, frozen=True, array_like=True):
    """The first message on a connection: the store's data folder, and a number of its start.

    A store whose folder was wiped has forgotten its votes. The others know the folder that belongs
    to a number, and do not let another one speak for it (decision 0007).
    Test: test_host::test_a_wiped_store_is_not_heard_under_its_old_number
    """

    incarnation: str
    epoch: int
    address: str
    """The address of the store; empty if it does not know it."""
    knows_sync_times: bool = False
    """Whether a ping to it may tell how long a sync takes; release 0.1.0 does not say so."""


_SYNC_TIME = struct.Struct("<I")


def encode_ping(sync_ms: int | None) -> bytes:
    """A sign of life, with the time that a sync takes at this store, if that is known."""
    return b"" if sync_ms is None else _SYNC_TIME.pack(min(sync_ms, SYNC_MS_MAX))


def decode_ping(payload: Payload) -> int | None:
    """Decodes how long a sync takes at the sender; None if it does not say."""
    if len(payload) < _SYNC_TIME.size:
        return None
    sync_ms: int = _SYNC_TIME.unpack_from(payload)[0]
    return sync_ms


class MemberRemoved(msgspec.Struct, frozen=True, array_like=True):
    """A leader tells a store that it is no member any more, as of the index that it has applied.

    A store does not take this from its own log: one that joins replays removals of long ago
    (decision 0007).
    """

    group: int
    term: int
    applied: int


class HostNetwork(msgspec.Struct, frozen=True, kw_only=True):
    """How the stores of a cluster know and reach one another."""

    cluster: str
    secret: Secret
    """Known to the stores alone."""
    client_secret: Secret | None = None
    """Known to clients as well; without it none are let in."""
    reader_secret: Secret | None = None
    """Known to clients that may change nothing."""
    operator_secret: Secret | None = None
    """Known to operators, who may change the groups; without it only stores may."""
    tls: ClientTls | None = None
    limits: ClientLimits = ClientLimits(
        connect_timeout_ms=2_000, ping_interval_ms=2_000, ping_timeout_ms=2_000
    )

    def server_credentials(self, store: int) -> ServerCredentials:
        return ServerCredentials(
            cluster_id=self.cluster,
            identity=store_identity(store),
            secret_of=self._secret_of,
        )

    def _secret_of(self, identity: Identity) -> Secret | None:
        secrets = {
            STORE_ROLE: self.secret,
            CLIENT_ROLE: self.client_secret,
            READER_ROLE: self.reader_secret,
            OPERATOR_ROLE: self.operator_secret,
        }
        return secrets.get(identity.role)

    async def dial(
        self, environment: Environment, address: str, *, own: int, peer: int
    ) -> Connection:
        host, port = split_address(address)
        credentials = ClientCredentials(
            cluster_id=self.cluster,
            identity=store_identity(own),
            secret=self.secret,
            server=store_identity(peer),
        )
        return await connect(
            host, port, credentials, environment.random, limits=self.limits, tls=self.tls
        )


FRAME_VERSION: Final = 1
MAGIC: Final = int.from_bytes(b"RWM", "little") | FRAME_VERSION << 24
NUMBER_MAX: Final = (1 << 63) - 1
TERM_MAX: Final = 1 << 48
"""A group never gets there by elections; a term that is taken over is never given up again."""
_FRAME: Final = struct.Struct("<II")
_HEAD: Final = struct.Struct("<QBBHQQQQQQI")
_RUN: Final = struct.Struct("<QII")
_APPEND: Final = MessageKind.APPEND

HEAD_BYTES: Final = _HEAD.size
SENT_KINDS: Final = frozenset(
    {
        MessageKind.APPEND,
        MessageKind.APPEND_RESPONSE,
        MessageKind.VOTE,
        MessageKind.VOTE_RESPONSE,
        MessageKind.PREVOTE,
        MessageKind.PREVOTE_RESPONSE,
        MessageKind.HEARTBEAT,
        MessageKind.HEARTBEAT_RESPONSE,
        MessageKind.TRANSFER_LEADER,
        MessageKind.TIMEOUT_NOW,
        MessageKind.READ_INDEX,
        MessageKind.READ_INDEX_RESPONSE,
    }
)
_WITHOUT_TERM: Final = (MessageKind.READ_INDEX, MessageKind.TRANSFER_LEADER)
"""Kinds that are forwarded to the leader as if a client had asked there."""
_SENT: Final = tuple(kind if kind in SENT_KINDS else None for kind in MessageKind)

Received = tuple[int, Message, list[tuple[EncodedRun, list[Entry]]]]
"""Group, message, and the runs that its entries came in."""


_NO_RUNS: Final[list[tuple[EncodedRun, list[Entry]]]] = []

FRAME_BYTES = 16 << 20
"""A frame that has reached this size ends, and the next one takes the rest of the messages."""


def encode_frames(messages: Sequence[tuple[int, Message, RunCache]]) -> Iterator[list[Buffer]]:
    """Frames, in pieces; each message with its group and the book of its runs."""
    heads: list[bytes] = [b""]
    payloads: list[Buffer] = []
    size = count = 0
    for group, message, book in messages:
        if size >= FRAME_BYTES:
            heads[0] = _FRAME.pack(MAGIC, count)
            yield [b"".join(heads), *payloads]
            heads, payloads, size, count = [b""], [], 0, 0
        count += 1
        runs = book.runs(message.entries) if message.entries else ()
        heads.append(
            _HEAD.pack(
                group,
                message.kind,
                message.rejected,
                len(message.context),
                message.source,
                message.term,
                message.log_term,
                message.index,
                message.commit,
                message.reject_hint,
                len(runs),
            )
        )
        if message.context:
            heads.append(message.context)
        for run, _ in runs:
            heads.append(_RUN.pack(run.term, run.count, len(run.payload)))
            payloads.append(run.payload)
            size += len(run.payload)
    heads[0] = _FRAME.pack(MAGIC, count)
    yield [b"".join(heads), *payloads]


def decode_frame(data: Buffer, *, target: int) -> list[Received]:
    """The messages of a frame, or `ProtocolError`."""
    try:
        return _decode(data, target)
    except struct.error as error:
        raise ProtocolError("a raft frame ends too early") from error


def _decode(data: Buffer, target: int) -> list[Received]:
    magic, count = _FRAME.unpack_from(data)
    if magic != MAGIC:
        raise ProtocolError(f"not a raft frame of version {FRAME_VERSION}")
    if count * HEAD_BYTES > len(data):
        raise ProtocolError(f"{count} messages do not fit a frame of {len(data)} bytes")
    heads = []
    offset = _FRAME.size
    for _ in range(count):
        message, group, run_heads, offset = _decode_head(data, offset, target)
        heads.append((group, message, run_heads))
    view = memoryview(data)
    received: list[Received] = []
    for group, message, run_heads in heads:
        if not run_heads:
            received.append((group, message, _NO_RUNS))
            continue
        runs = []
        first_index = message.index + 1
        for term, entry_count, size in run_heads:
            if offset + size > len(view):
                raise ProtocolError("a run goes beyond its frame")
            run = EncodedRun(term, first_index, entry_count, view[offset : offset + size])
            runs.append((run, decode_run(run)))
            offset += size
            first_index += entry_count
        if len(runs) == 1:
            message.entries = runs[0][1]
        elif runs:
            message.entries = [entry for _, entries in runs for entry in entries]
        received.append((group, message, runs))
    if offset != len(view):
        raise ProtocolError(f"{len(view) - offset} bytes follow the last run of a frame")
    return received


def _decode_head(
    data: Buffer, offset: int, target: int
) -> tuple[Message, int, list[tuple[int, int, int]], int]:
    head = _HEAD.unpack_from(data, offset)
    group, number, rejected, context_bytes, source, term, log_term, index, commit, hint, runs = head
    kind = _SENT[number] if number < len(_SENT) else None
    if kind is None or rejected > 1:
        raise ProtocolError(f"a message of kind {number} does not come from another host")
    if max(group, source, term, log_term, index, commit, hint) > NUMBER_MAX:
        raise ProtocolError("a number of a raft message is above 63 bits")
    if term > TERM_MAX or (term == 0 and kind not in _WITHOUT_TERM):
        raise ProtocolError(f"{kind.name} is of term {term}")
    offset += HEAD_BYTES
    context = b""
    if context_bytes:
        context = bytes(data[offset : offset + context_bytes])
        if len(context) != context_bytes:
            raise ProtocolError("a raft frame ends within a context")
        offset += context_bytes
    if runs and kind is not _APPEND:
        raise ProtocolError(f"{kind.name} carries no entries")
    if runs * _RUN.size > len(data) - offset:
        raise ProtocolError(f"{runs} runs do not fit the frame")
    run_heads: list[tuple[int, int, int]] = []
    for _ in range(runs):
        run_heads.append(_RUN.unpack_from(data, offset))
        if not 0 < run_heads[-1][0] <= term:
            raise ProtocolError(f"a run is of term {run_heads[-1][0]} in a message of term {term}")
        offset += _RUN.size
    message = Message(
        kind,
        target,
        source,
        term,
        log_term,
        index,
        NO_ENTRIES,
        commit,
        rejected == 1,
        hint,
        context=context,
    )
    return message, group, run_heads, offset


_log = get_logger("raft")
_BACKOFF = Backoff(first_ms=20, longest_ms=500)
"""Short: a store that is back is needed at once."""


class Peer:
    """Another store."""

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
        """The start of the store that was heard from last; None if it was not accepted yet."""
        self.voice: Identity | None = None
        """The identity of the connection on which the store introduced itself last."""
        self.silent_ticks = 0
        self.is_lost = False
        self.refusal = ""
        """The last reason that it gave for refusing this store."""
        self.knows_sync_times = False
        self.sync_ms: int | None = None
        """How long a sync takes there, by its last ping."""


class Transport:
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
        """How long a sync takes at a store; None if unknown."""
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
        """Sends the introduction to all stores again, because its contents have changed."""
        for peer in self._peers.values():
            peer.channel.send(INTRODUCE, self._introduce())

    def send(self, store: int, frame: Sequence[Buffer]) -> None:
        """Sends a raft frame. One that cannot be sent is dropped; raft sends its contents again."""
        peer = self._peers.get(store)
        if (
            peer is not None
            and not peer.channel.send(RAFT_FRAME, frame)
            and peer.channel.is_connected
        ):
            # The peer takes less than it is sent. A lost connection was reported when it broke.
            self._on_unreachable(store)

    def heard(self, identity: Identity) -> bool:
        """Notes that a store is alive; returns whether messages on this connection count.

        Each connection has an identity object of its own. Late messages on an older connection, or
        on one of another store under the same number, do not count: two stores that both answer for
        one number would be two votes. Test:
        test_host::test_what_comes_on_a_connection_without_an_introduction_is_not_heard
        """
        peer = self._peers.get(store_of(identity))
        if peer is None or peer.voice is not identity:
            return False
        peer.silent_ticks = 0
        peer.is_lost = False
        return True

    async def tick(self, silent_ticks_max: int, sync_ms: int | None = None) -> list[int]:
        """Sends a sign of life to all stores; returns those that fell silent, each once."""
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
        """Log a refusal once that does not pass by itself: another secret, cluster or folder."""
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
