"""The simulated network: reachability, delays, and faults on the way.

`Network` holds the faults and the listeners; `Direction` carries the bytes of one way of one
connection, in order, as TCP does: a lost segment is sent again until the path is open or the
connection times out. What a reader has not taken yet counts against the socket buffer, so that a
reader that pauses really stops its writer.
"""

import errno
import socket
from collections import deque
from collections.abc import Iterable
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from raftwood.testing.loop import SimulatedLoop
    from raftwood.testing.nodes import SimulatedNode
    from raftwood.testing.sockets import SimulatedServer, SimulatedTransport

_OWN_NAMES = frozenset({"", "0.0.0.0", "127.0.0.1", "::", "::1", "localhost"})  # noqa: S104
_FIRST_EPHEMERAL_PORT = 32_768
_LAST_EPHEMERAL_PORT = 60_999
_LOCAL_DELAY_S = 0.00002


class NetworkProfile(msgspec.Struct, frozen=True, kw_only=True):
    """The network's behaviour while no path is cut."""

    delay_s: tuple[float, float] = (0.0002, 0.002)
    spike_probability: float = 0.0
    spike_s: tuple[float, float] = (0.05, 0.5)
    split_probability: float = 0.05
    """How often one write travels as several segments."""
    short_read_probability: float = 0.05
    """How often a read takes only a part of what has arrived."""
    socket_buffer_bytes: int = 256 * 1024
    retransmit_s: float = 0.2
    tcp_timeout_s: float = 15.0
    connect_timeout_s: float = 3.0


class Network:
    """All links between nodes; nodes are given by name."""

    def __init__(self, loop: "SimulatedLoop", profile: NetworkProfile) -> None:
        self.loop = loop
        self.profile = profile
        self.listeners: dict[tuple[str, int], SimulatedServer] = {}
        self.transports: dict[SimulatedTransport, None] = {}
        self.random = loop.random_of("network")
        self._cuts: dict[tuple[str, str], None] = {}
        self._stalled_until: dict[tuple[str, str], float] = {}
        self._last_port = _FIRST_EPHEMERAL_PORT - 1

    # Faults.

    def cut(self, *, source: str, target: str) -> None:
        """Loses everything from source to target; the other way stays open."""
        self._cuts[(source, target)] = None
        self.loop.trace("cut", source, target)

    def mend(self, *, source: str, target: str) -> None:
        self._cuts.pop((source, target), None)
        self.loop.trace("mend", source, target)

    def partition(self, left: Iterable[str], right: Iterable[str]) -> None:
        """Loses everything between the two sides, both ways."""
        others = list(right)
        for one in left:
            for other in others:
                self.cut(source=one, target=other)
                self.cut(source=other, target=one)

    def heal(self) -> None:
        """Opens all paths again."""
        self._cuts.clear()
        self._stalled_until.clear()
        self.loop.trace("heal")

    def stall(self, *, source: str, target: str, seconds: float) -> None:
        """Holds everything from source to target back for a while, losing nothing."""
        self._stalled_until[(source, target)] = self.loop.now + seconds
        self.loop.trace("stall", source, target, seconds)

    def reset(self, one: str, other: str) -> int:
        """Resets all connections between two nodes, at both ends; returns the number of ends."""
        hit = [
            transport
            for transport in self.transports
            if {transport.node.name, transport.peer.node.name} == {one, other}
        ]
        for transport in hit:
            transport.break_off(ConnectionResetError(errno.ECONNRESET, "reset by the network"))
        self.loop.trace("reset", one, other, len(hit))
        return len(hit)

    # Links.

    def is_cut(self, source: "SimulatedNode", target: "SimulatedNode") -> bool:
        if not target.powered or not source.powered:
            return True
        return bool(self._cuts) and (source.name, target.name) in self._cuts

    def stalled_until(self, source: "SimulatedNode", target: "SimulatedNode") -> float:
        if not self._stalled_until:
            return 0.0
        return self._stalled_until.get((source.name, target.name), 0.0)

    def delay(self, source: "SimulatedNode", target: "SimulatedNode") -> float:
        if source is target:
            return _LOCAL_DELAY_S
        profile = self.profile
        draw = self.random.random
        low, high = profile.delay_s
        if profile.spike_probability and draw() < profile.spike_probability:
            low, high = profile.spike_s
        return low + (high - low) * draw()

    # Names and ports.

    def resolve(self, host: str | None, own: "SimulatedNode") -> "SimulatedNode":
        if host is None or host in _OWN_NAMES:
            return own
        found = self.loop.nodes.get(host)
        if found is None:
            raise socket.gaierror(socket.EAI_NONAME, f"no node is named {host!r}")
        return found

    def free_port(self) -> int:
        """Returns a port without a server, the longest unused first."""
        taken = {port for _, port in self.listeners}
        while True:
            self._last_port += 1
            if self._last_port > _LAST_EPHEMERAL_PORT:
                self._last_port = _FIRST_EPHEMERAL_PORT
            if self._last_port not in taken:
                return self._last_port

    def listen(self, server: "SimulatedServer") -> None:
        key = (server.node.name, server.port)
        if key in self.listeners:
            raise OSError(errno.EADDRINUSE, f"address {key[0]}:{key[1]} is already in use")
        self.listeners[key] = server

    def unlisten(self, server: "SimulatedServer") -> None:
        key = (server.node.name, server.port)
        if self.listeners.get(key) is server:
            del self.listeners[key]


class Direction:
    """The bytes under way from one end of a connection to the other."""

    __slots__ = (
        "_ack_missing_since", "_capacity", "_last_arrival", "_segments", "_unread", "network",
        "source", "source_waits", "target",
    )  # fmt: skip

    def __init__(
        self, network: Network, source: "SimulatedTransport", target: "SimulatedTransport"
    ) -> None:
        self.network = network
        self.source = source
        self.target = target
        self.source_waits = False
        self._capacity = network.profile.socket_buffer_bytes
        self._unread = 0
        self._last_arrival = 0.0
        self._ack_missing_since = 0.0
        # (arrival, sent, data); empty data is the end of the stream.
        self._segments: deque[tuple[float, float, bytes]] = deque()

    def offer(self, data: bytes) -> int:
        """Takes as many bytes as the socket buffer has room for."""
        room = self._capacity - self._unread
        if room <= 0:
            self.source_waits = True
            return 0
        if len(data) > room:
            self.source_waits = True
            data = data[:room]
        size = len(data)
        self._unread += size
        network = self.network
        probability = network.profile.split_probability
        if size > 1 and probability and network.random.random() < probability:
            middle = 1 + int(network.random.random() * (size - 1))
            self._send(data[:middle])
            self._send(data[middle:])
        else:
            self._send(data)
        return size

    def finish(self) -> None:
        """Sends the end of the stream after everything else."""
        self._send(b"")

    def consumed(self, size: int) -> None:
        """The reader took bytes out of its socket: wakes a writer that waits for room."""
        self._unread -= size
        if self.source_waits:
            self.source_waits = False
            network = self.network
            delay = network.delay(self.target.node, self.source.node)
            network.loop.kernel_later(delay, self.source.became_writable)

    def clear(self) -> None:
        self._segments.clear()

    def reset_target(self) -> None:
        """Sends a reset; like any single packet, it may be lost."""
        network = self.network
        delay = network.delay(self.source.node, self.target.node)
        network.loop.kernel_later(delay, self._reset_arrives)

    def _reset_arrives(self) -> None:
        if not self.network.is_cut(self.source.node, self.target.node):
            self.target.break_off(
                ConnectionResetError(errno.ECONNRESET, "Connection reset by peer")
            )

    def _send(self, data: bytes) -> None:
        network = self.network
        now = network.loop.now
        arrival = now + network.delay(self.source.node, self.target.node)
        arrival = max(arrival, self._last_arrival)
        self._last_arrival = arrival
        self._segments.append((arrival, now, data))
        if len(self._segments) == 1:
            network.loop.kernel_at(arrival, self._deliver)

    def _deliver(self) -> None:
        segments = self._segments
        if not segments:
            return
        network, source, target = self.network, self.source.node, self.target.node
        loop = network.loop
        now = loop.now
        if network.is_cut(source, target):
            if now - segments[0][1] > network.profile.tcp_timeout_s:
                segments.clear()
                self.source.break_off(TimeoutError(errno.ETIMEDOUT, "Connection timed out"))
            else:
                pause = network.profile.retransmit_s * (1.0 + network.random.random())
                loop.kernel_later(pause, self._deliver)
            return
        stalled_until = network.stalled_until(source, target)
        if stalled_until > now:
            loop.kernel_at(stalled_until, self._deliver)
            return
        while segments and segments[0][0] <= now:
            data = segments.popleft()[2]
            loop.trace_data(self.target.number, data)
            if self.target.gone:
                segments.clear()
                if data:
                    self.target.outgoing.reset_target()
                return
            self.target.arrived(data)
        if segments:
            loop.kernel_at(segments[0][0], self._deliver)
        if not self._ack_missing_since and network.is_cut(target, source):
            self._ack_missing_since = now
            loop.kernel_later(network.profile.retransmit_s, self._check_acks)

    def _check_acks(self) -> None:
        """Lets the sender give up if its data arrive but their acks do not."""
        network = self.network
        if self.source.gone or not network.is_cut(self.target.node, self.source.node):
            self._ack_missing_since = 0.0
        elif network.loop.now - self._ack_missing_since > network.profile.tcp_timeout_s:
            self.source.break_off(TimeoutError(errno.ETIMEDOUT, "Connection timed out"))
        else:
            network.loop.kernel_later(network.profile.retransmit_s, self._check_acks)
