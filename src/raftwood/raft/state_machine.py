"""The seam between a replicated log and what is built on it.

A state machine is deterministic: the same commands in the same order leave every replica in the
same state and give the same results. It reads no clock and draws no random numbers. All calls come
from the host's event loop, one at a time, and none of them may block for long.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, Protocol

import msgspec

from raftwood.base.errors import RaftwoodError


class Command(msgspec.Struct, frozen=True, gc=False):
    """One committed entry of the log."""

    index: int
    payload: bytes


class StateMachine(Protocol):
    """What a group of replicas replicates."""

    def update(self, commands: Sequence[Command]) -> Sequence[Any | RaftwoodError]:
        """Apply commands in order; a result for each, which its proposer gets.

        A `RaftwoodError` among the results is raised to the proposer; it is a result like any
        other, equal on all replicas. Anything raised ends the process: a replica that skips a
        command is no replica any more.
        """

    def lookup(self, query: Any) -> Any:
        """Answer a question from what was applied so far, and change nothing."""

    def save_snapshot(self, stopped: Callable[[], bool]) -> Iterator[bytes]:
        """The state as of now, in chunks; later commands do not show in it.

        Ends early, with nothing to be kept, once `stopped` answers true.
        """

    def recover_from_snapshot(self, chunks: Iterable[bytes], stopped: Callable[[], bool]) -> None:
        """Become what `save_snapshot` saw, in place of all there is."""

    def close(self) -> None:
        """Give up what is held; nothing is called afterwards."""
