"""The seam between a replicated log and the state machines on it.

A state machine is deterministic: the same commands in the same order leave every replica in the
same state and give the same results. It reads no clock and draws no random numbers. All calls come
from the host's event loop, one at a time, and none of them may block for long.

`in_chunks` and `gathered` are for state machines that are small enough to be encoded as a whole.
"""

from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from typing import Any, Final, Protocol, runtime_checkable

Stopped = Callable[[], bool]
"""Asked between chunks: true once the host wants a snapshot's work to be given up."""


class CommittedCommand(Protocol):
    """One committed entry of the log."""

    @property
    def index(self) -> int: ...
    @property
    def payload(self) -> bytes: ...


class ExtraFiles(Protocol):
    """Files that travel with a snapshot beside its chunks."""

    def add(self, name: str, path: str) -> None:
        """Takes a file of the host's disk into the snapshot; it is copied before the save ends."""


class StateMachine(Protocol):
    """The state that a group of replicas replicates."""

    def update(self, commands: Sequence[CommittedCommand]) -> Sequence[Any]:
        """Applies commands in order; returns a result for each, which its proposer gets.

        A `RaftwoodError` among the results is raised to the proposer; it is a result like any
        other, equal on all replicas. Anything raised ends the process: a replica that skips a
        command is no replica any more. Results are bytes where clients are on the network.
        """

    def lookup(self, query: Any) -> Any:
        """Answers a question from the state applied so far, and changes nothing."""

    def save_snapshot(self, files: ExtraFiles, stopped: Stopped) -> Iterator[bytes]:
        """The state as of now, in chunks; later commands do not show in it.

        Called, and asked for its first chunk, between two updates; the other chunks are taken
        while updates go on. Ends early, with nothing to be kept, once `stopped` answers true.
        """

    async def recover_from_snapshot(
        self, chunks: AsyncIterator[bytes], files: Mapping[str, str], stopped: Stopped
    ) -> None:
        """Replaces the whole state by the one that `save_snapshot` saw; `files` names paths.

        Returns early, with a state that is never used, once `stopped` answers true.
        """

    def close(self) -> None:
        """Releases all resources; nothing is called afterwards."""


@runtime_checkable
class PatientMachine(Protocol):
    """An addition of some state machines: a question can wait for a change."""

    async def wait(self, query: Any, timeout_ms: int) -> bool:
        """Waits for news in `lookup` or the end of the time; False if it need not have waited."""


@runtime_checkable
class NamingMachine(Protocol):
    """A state machine that carries out no command twice: each has a name, however often it is sent.

    With it a leader need not propose again what its log holds.
    """

    def name_of(self, payload: bytes) -> bytes | None:
        """A command's name, at least 18 bytes; None for one without."""

    def name_before(self, payload: bytes) -> bytes | None:
        """The name of the command that must come before this one; None if it needs no other."""

    def answer_to(self, name: bytes) -> Any:
        """The outcome of the command, if it was applied and is remembered; else None."""


@runtime_checkable
class RetainingMachine(Protocol):
    """A state machine that has not all in its snapshots: it reads some of it in the log itself."""

    @property
    def freeable_index(self) -> int:
        """Up to here the log need not be kept."""


CHUNK_BYTES: Final = 256 << 10


def in_chunks(data: bytes, stopped: Stopped) -> Iterator[bytes]:
    """What `save_snapshot` gives; ends early once the host wants no more."""
    for offset in range(0, len(data), CHUNK_BYTES):
        if stopped():
            return
        yield data[offset : offset + CHUNK_BYTES]


async def gathered(chunks: AsyncIterator[bytes], stopped: Stopped) -> bytes | None:
    """What `recover_from_snapshot` gets, put together; None once the host wants no more."""
    data = bytearray()
    async for chunk in chunks:
        if stopped():
            return None
        data += chunk
    return bytes(data)
