"""Lanes: some batches are delivered behind the first one, and all are stored in order."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from raftwood.clogs.tail.checkpoints import decode_checkpoint
from raftwood.clogs.tail.lanes import _AHEAD_MAX
from raftwood.clogs.tail.tailer import Tailer
from tests.kits.clogs.tail.tail_run import Folder, folder_of_logs, until

LINES = [b"line %04d of a file" % number for number in range(2000)]
TEXT = b"\n".join(LINES) + b"\n"


def intended(tailer: Tailer, name: str) -> int:
    return max((len(file.intents) for file in tailer._roster.of_name(name)), default=0)


def test_some_batches_are_delivered_behind_the_first_one_and_they_stay_in_order(
    tmp_path: Path,
) -> None:
    async def main(folder: Folder) -> None:
        folder.change(batch_bytes_max=4096, line_bytes_max=1024)
        folder.taker.is_open.clear()
        folder.write("a.log", TEXT)
        async with folder.tailing() as tailer:
            await until(lambda: intended(tailer, "a.log") == 1 + _AHEAD_MAX)
            await until(lambda: folder.taker.waiting == 1 + _AHEAD_MAX)
            await asyncio.sleep(0.05)
            assert intended(tailer, "a.log") == folder.taker.waiting == 1 + _AHEAD_MAX
            folder.taker.is_open.set()
            await folder.comes("a.log", *LINES)
        sequences = [batch.sequence for batch in folder.taker.batches]
        assert sequences == list(range(1, len(sequences) + 1))

    run(tmp_path, main)


def test_what_was_made_ahead_is_sent_under_its_old_names_after_a_restart(tmp_path: Path) -> None:
    async def main(folder: Folder) -> None:
        folder.change(batch_bytes_max=4096, line_bytes_max=1024)
        folder.taker.is_open.clear()
        folder.write("a.log", TEXT)
        async with folder.tailing() as tailer:
            await until(lambda: intended(tailer, "a.log") == 1 + _AHEAD_MAX)
            (number,) = (n for n in tailer._store.log.groups() if n)
        folder.taker.is_open.set()
        folder.taker.waiting = 0
        async with folder.tailing() as tailer:
            state = tailer._store.log.state(number)
            assert state is not None
            assert len(decode_checkpoint(state).intents) <= 1 + _AHEAD_MAX
            await folder.comes("a.log", *LINES)
        assert [batch.sequence for batch in folder.taker.resumed] == list(range(1, 2 + _AHEAD_MAX))

    run(tmp_path, main)


def test_names_that_are_not_taken_leave_room_for_others(tmp_path: Path) -> None:
    async def main(folder: Folder) -> None:
        folder.change(batch_bytes_max=4096, line_bytes_max=1024, batches_max=4)
        folder.taker.is_open.clear()
        folder.write("a.log", TEXT)
        async with folder.tailing() as tailer:
            await until(lambda: intended(tailer, "a.log") == 3)
            await asyncio.sleep(0.05)
            assert intended(tailer, "a.log") == 3, "half of the room is for batches ahead"
            folder.write("b.log", TEXT)
            await until(lambda: folder.taker.waiting == 4)
            folder.taker.is_open.set()
            await folder.comes("a.log", *LINES)
            await folder.comes("b.log", *LINES)

    run(tmp_path, main)


def test_names_that_read_at_once_share_the_room_for_batches_ahead(tmp_path: Path) -> None:
    async def main(folder: Folder) -> None:
        folder.change(batch_bytes_max=4096, line_bytes_max=1024, batches_max=8)
        folder.taker.is_open.clear()
        names = ["a.log", "b.log", "c.log"]
        for name in names:
            folder.write(name, TEXT)
        async with folder.tailing() as tailer:
            await until(lambda: sum(intended(tailer, name) for name in names) >= 7)
            await asyncio.sleep(0.05)
            count = sum(intended(tailer, name) for name in names)
            assert count == 7, "the first of each, and half of the room behind them"
            folder.taker.is_open.set()
            for name in names:
                await folder.comes(name, *LINES)

    run(tmp_path, main)


def run(path: Path, scenario: Callable[[Folder], Awaitable[None]]) -> None:
    async def main() -> None:
        async with folder_of_logs(path) as folder:
            await scenario(folder)

    asyncio.run(main())
