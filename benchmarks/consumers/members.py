"""The processes of one group, what they say, and who reads what by that."""

import subprocess
import threading
import time
from collections import Counter
from collections.abc import Callable, Sequence
from types import TracebackType
from typing import Final, Self

import msgspec

from benchmarks.consumers.notes import BEGUN, ENDED, Note, now_ns
from benchmarks.harness.cluster import ClusterFailed

POLL_S: Final = 0.1
"""Times come from the notes: to look more often would only take CPU from who is measured."""
END_S: Final = 5.0


class Said(msgspec.Struct, frozen=True):
    """A note, and the member whose it is."""

    member: int
    note: Note


class Members:
    """A context: each member's process runs inside; `command(number)` starts one."""

    def __init__(self, count: int, command: Callable[[int], Sequence[str]]) -> None:
        self._processes = [
            subprocess.Popen(command(number), stdin=subprocess.PIPE, stdout=subprocess.PIPE)
            for number in range(count)
        ]
        self._said: list[Said] = []
        self._threads = [
            threading.Thread(target=self._listen, args=(number,), daemon=True)
            for number in range(count)
        ]
        for thread in self._threads:
            thread.start()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for process in self._processes:
            process.kill()
        for process, thread in zip(self._processes, self._threads, strict=True):
            process.wait()
            thread.join(END_S)
            for pipe in (process.stdin, process.stdout):
                assert pipe is not None
                pipe.close()

    def _listen(self, number: int) -> None:
        output = self._processes[number].stdout
        assert output is not None
        for line in output:
            self._said.append(Said(number, msgspec.json.decode(line, type=Note)))

    def tell(self, numbers: Sequence[int], word: str) -> None:
        for number in numbers:
            given = self._processes[number].stdin
            assert given is not None
            given.write(f"{word}\n".encode())
            given.flush()

    def kill(self, number: int) -> int:
        """With -9; answers when."""
        killed_ns = now_ns()
        self._processes[number].kill()
        return killed_ns

    def said_since(self, ns: int) -> list[Said]:
        """In order of time."""
        return sorted(
            (each for each in list(self._said) if each.note.ns >= ns), key=lambda each: each.note.ns
        )

    def readers(self) -> dict[str, int]:
        """By shard, the member that began last, unless it has given it up."""
        found: dict[str, int] = {}
        for each in sorted(self._said, key=lambda said: said.note.ns):
            if each.note.kind == BEGUN:
                found[each.note.shard] = each.member
            elif each.note.kind == ENDED and found.get(each.note.shard) == each.member:
                del found[each.note.shard]
        return found

    def sizes(self) -> Counter[int]:
        return Counter(self.readers().values())

    def until(self, holds: Callable[[], bool], seconds: float, what: str) -> None:
        give_up = time.monotonic() + seconds
        while not holds():
            if time.monotonic() > give_up:
                raise ClusterFailed(f"not within {seconds:.0f} s: {what}: {self.sizes()}")
            time.sleep(POLL_S)
