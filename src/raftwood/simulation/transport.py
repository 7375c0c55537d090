"""One end of a simulated TCP connection, as asyncio's protocols know it.

What the kernel would do (`arrived`, `break_off`, `became_writable`) happens whether or not the
process runs; what asyncio would do happens as callbacks of the process, in its order.
"""

import asyncio
import contextvars
from collections import deque
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

from raftwood.simulation.errors import ProcessEnded
from raftwood.simulation.network import Direction, Network

if TYPE_CHECKING:
    from raftwood.simulation.nodes import Node, Process
    from raftwood.simulation.server import SimulatedServer

_READ_BYTES_MAX = 256 * 1024
_HIGH_WATER_DEFAULT = 64 * 1024


class SimulatedTransport(asyncio.Transport):
    """A connected socket of one process."""

    peer: "SimulatedTransport"
    outgoing: Direction
    incoming: Direction

    def __init__(
        self,
        network: Network,
        process: "Process",
        context: contextvars.Context,
        server: "SimulatedServer | None" = None,
    ) -> None:
        super().__init__()
        self.network = network
        self.process = process
        self.node: Node = process.node
        self.number = process.number
        self.gone = False
        self._loop = network.loop
        self._context = context
        self._server = server
        self._names: dict[str, Any] = {}
        self._protocol: Any = None
        self._buffered_protocol = False
        self._closing = False
        self._lost_called = False
        self._lost_because: OSError | None = None
        # Towards the peer.
        self._buffer: deque[bytes] = deque()
        self._buffer_bytes = 0
        self._write_scheduled = False
        self._eof_written = False
        self._end_sent = False
        self._protocol_paused = False
        self._high_water = _HIGH_WATER_DEFAULT
        self._low_water = _HIGH_WATER_DEFAULT // 4
        # From the peer.
        self._received: deque[bytes] = deque()
        self._received_bytes = 0
        self._eof_received = False
        self._reading_paused = False
        self._read_scheduled = False
        network.transports[self] = None
        process.resources[self] = None

    def __repr__(self) -> str:
        return f"<connection of {self.node.name} with {self.peer.node.name}>"

    @property
    def reports_leak(self) -> bool:
        return not self.gone

    def join(self, peer: "SimulatedTransport") -> None:
        """Connect two ends, before either is used."""
        self.peer, peer.peer = peer, self
        self.outgoing = peer.incoming = Direction(self.network, self, peer)
        self.incoming = peer.outgoing = Direction(self.network, peer, self)

    def name_ends(self, own: Any, other: Any) -> None:
        self._names = {
            "socket": own,
            "sockname": own.getsockname(),
            "peername": other.getsockname(),
        }

    def get_extra_info(self, name: str, default: Any = None) -> Any:
        return self._names.get(name, default)

    def attach(self, protocol: asyncio.BaseProtocol) -> None:
        """Hand the connection to its protocol; called in the process's own turn."""
        self.set_protocol(protocol)
        if self._server is not None:
            self._server.attach()
        if self._guarded(protocol.connection_made, self):
            self._schedule_read()
        if self._lost_called:
            # It broke before the process took it; the protocol has to hear of both.
            self._lost_called = False
            self._loop.call_soon(
                self._call_connection_lost, self._lost_because, context=self._context
            )

    # What the kernel does.

    def arrived(self, data: bytes) -> None:
        if data:
            self._received.append(data)
            self._received_bytes += len(data)
        else:
            self._eof_received = True
        self._schedule_read()

    def became_writable(self) -> None:
        if not self.gone and not self._write_scheduled:
            self._write_scheduled = True
            self._loop.call_soon(self._write_ready, context=self._context)

    def break_off(self, exception: OSError | None) -> None:
        """The connection is over: nothing more is sent or delivered."""
        if self.gone:
            return
        self._leave()
        self._loop.call_soon(self._call_connection_lost, exception, context=self._context)

    def process_ended(self, *, power_lost: bool) -> None:
        if not self.gone:
            self._leave()
            if not power_lost:
                self.outgoing.reset_target()

    def _leave(self) -> None:
        self.gone = True
        self._closing = True
        self._buffer.clear()
        self._buffer_bytes = 0
        self._received.clear()
        self._received_bytes = 0
        self.network.transports.pop(self, None)

    # Reading.

    def _schedule_read(self) -> None:
        if (
            not self._read_scheduled
            and not self._reading_paused
            and not self._closing
            and self._protocol is not None
            and (self._received or self._eof_received)
        ):
            self._read_scheduled = True
            self._loop.call_soon(self._read_ready, context=self._context)

    def _read_ready(self) -> None:
        self._read_scheduled = False
        if self._closing or self._reading_paused:
            return
        if self._received:
            if self._buffered_protocol:
                self._read_into_buffer()
            else:
                data = self._take(_READ_BYTES_MAX)
                self._guarded(self._protocol.data_received, data)
        elif self._eof_received:
            self._deliver_eof()
            return
        self._schedule_read()

    def _read_into_buffer(self) -> None:
        try:
            buffer = memoryview(self._protocol.get_buffer(-1))
            if not buffer:
                raise RuntimeError("get_buffer() returned an empty buffer")
        except (ProcessEnded, SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:
            self._fatal(error)
            return
        data = self._take(len(buffer))
        buffer[: len(data)] = data
        self._guarded(self._protocol.buffer_updated, len(data))

    def _take(self, bytes_max: int) -> bytes:
        """Read what has arrived: joined, cut or, by chance, short."""
        available = min(self._received_bytes, bytes_max)
        probability = self.network.profile.short_read_probability
        if available > 1 and probability and self.network.random.random() < probability:
            available = 1 + int(self.network.random.random() * (available - 1))
        received = self._received
        if len(received) == 1 and len(received[0]) == available:
            data = received.popleft()
        else:
            data = b"".join(received)
            received.clear()
            if len(data) > available:
                received.append(data[available:])
                data = data[:available]
        self._received_bytes -= available
        self.incoming.consumed(available)
        return data

    def _deliver_eof(self) -> None:
        self._eof_received = False
        try:
            keeps_open = self._protocol.eof_received()
        except (ProcessEnded, SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:
            self._fatal(error)
            return
        if not keeps_open:
            self.close()

    def pause_reading(self) -> None:
        self._reading_paused = True

    def resume_reading(self) -> None:
        self._reading_paused = False
        self._schedule_read()

    def is_reading(self) -> bool:
        return not self._closing and not self._reading_paused

    # Writing.

    def write(self, data: bytes | bytearray | memoryview) -> None:
        if not isinstance(data, (bytes, bytearray, memoryview)):
            raise TypeError(f"data must be a bytes-like object, not {type(data).__name__}")
        if self._eof_written:
            raise RuntimeError("Cannot call write() after write_eof()")
        if self._closing or not data:
            return
        rest = bytes(data)
        if not self._buffer:
            taken = self.outgoing.offer(rest)
            if taken == len(rest):
                return
            rest = rest[taken:]
        self._buffer.append(rest)
        self._buffer_bytes += len(rest)
        self._maybe_pause_protocol()

    def writelines(self, list_of_data: Iterable[bytes | bytearray | memoryview]) -> None:
        self.write(b"".join(list_of_data))

    def _write_ready(self) -> None:
        self._write_scheduled = False
        if self.gone:
            return
        buffer = self._buffer
        while buffer:
            taken = self.outgoing.offer(buffer[0])
            self._buffer_bytes -= taken
            if taken < len(buffer[0]):
                buffer[0] = buffer[0][taken:]
                break
            buffer.popleft()
        self._maybe_resume_protocol()
        if not buffer:
            if self._closing:
                self._finish_close()
            elif self._eof_written:
                self.outgoing.finish()

    def can_write_eof(self) -> bool:
        return True

    def write_eof(self) -> None:
        if self._closing or self._eof_written:
            return
        self._eof_written = True
        if not self._buffer:
            self.outgoing.finish()

    def get_write_buffer_size(self) -> int:
        return self._buffer_bytes

    def get_write_buffer_limits(self) -> tuple[int, int]:
        return self._low_water, self._high_water

    def set_write_buffer_limits(self, high: int | None = None, low: int | None = None) -> None:
        if high is None:
            high = _HIGH_WATER_DEFAULT if low is None else 4 * low
        if low is None:
            low = high // 4
        if not high >= low >= 0:
            raise ValueError(f"high ({high!r}) must be >= low ({low!r}) must be >= 0")
        self._high_water, self._low_water = high, low
        self._maybe_pause_protocol()

    def _maybe_pause_protocol(self) -> None:
        if self._buffer_bytes > self._high_water and not self._protocol_paused:
            self._protocol_paused = True
            self._reported(self._protocol.pause_writing, "protocol.pause_writing() failed")

    def _maybe_resume_protocol(self) -> None:
        if self._protocol_paused and self._buffer_bytes <= self._low_water:
            self._protocol_paused = False
            self._reported(self._protocol.resume_writing, "protocol.resume_writing() failed")

    # Ending.

    def is_closing(self) -> bool:
        return self._closing

    def close(self) -> None:
        if self._closing:
            return
        self._closing = True
        if not self._buffer:
            self._finish_close()

    def _finish_close(self) -> None:
        # Apart from `_eof_written`: after close() a write is dropped, after write_eof() an error.
        if not self._eof_written and not self._end_sent:
            self._end_sent = True
            self.outgoing.finish()
        self._loop.call_soon(self._call_connection_lost, None, context=self._context)

    def abort(self) -> None:
        if self.gone:
            return
        if self.process.alive:
            self.outgoing.clear()
            self.outgoing.reset_target()
        self.break_off(None)

    def _call_connection_lost(self, exception: OSError | None) -> None:
        if self._lost_called:
            return
        self._lost_called = True
        self._lost_because = exception
        if not self.gone:
            self._leave()
        self.process.resources.pop(self, None)
        protocol, self._protocol = self._protocol, None
        try:
            if protocol is not None:
                protocol.connection_lost(exception)
        finally:
            if self._server is not None and protocol is not None:
                self._server.detach()

    def set_protocol(self, protocol: asyncio.BaseProtocol) -> None:
        self._protocol = protocol
        self._buffered_protocol = isinstance(protocol, asyncio.BufferedProtocol)

    def get_protocol(self) -> asyncio.BaseProtocol:
        protocol: asyncio.BaseProtocol = self._protocol
        return protocol

    # As asyncio: what a protocol raises costs its connection, not the loop.

    def _guarded(self, call: Callable[..., object], *args: object) -> bool:
        try:
            call(*args)
        except (ProcessEnded, SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:
            self._fatal(error)
            return False
        return True

    def _reported(self, call: Callable[[], object], message: str) -> None:
        try:
            call()
        except (ProcessEnded, SystemExit, KeyboardInterrupt):
            raise
        except BaseException as error:
            self._loop.call_exception_handler({"message": message, "exception": error})

    def _fatal(self, error: BaseException) -> None:
        if not isinstance(error, OSError):
            message = "Fatal error: a protocol callback failed"
            self._loop.call_exception_handler({"message": message, "exception": error})
        self.abort()
