"""A tailer over real files: each thing that happens to them."""

import asyncio
import gzip
import os
import shutil
from collections.abc import Awaitable, Callable
from functools import partial, wraps
from pathlib import Path

import pytest

from raftwood.clogs.masking import MaskRule, masking_of
from raftwood.clogs.tail import tailer as tailer_module
from raftwood.clogs.tail.settings import Multiline
from raftwood.clogs.tail.tailer import Tailer
from raftwood.disk.segment_log import SetState
from tests.kits.clogs.tail.tail_run import Folder, folder_of_logs, until

Scenario = Callable[[Folder], Awaitable[None]]


def real(scenario: Scenario) -> Callable[[Path], None]:
    """Run a scenario in a folder of its own."""

    @wraps(scenario)
    def run(tmp_path: Path) -> None:
        async def main() -> None:
            async with folder_of_logs(tmp_path) as folder:
                await scenario(folder)

        asyncio.run(main())

    del run.__wrapped__  # pytest would look for the arguments there
    run.__annotations__ = {"tmp_path": Path, "return": None}
    return run


@real
async def test_lines_come_as_they_are_written(folder: Folder) -> None:
    folder.write("a.log", b"one\ntwo\n")
    async with folder.tailing() as tailer:
        await folder.comes("a.log", b"one", b"two")
        folder.write("a.log", b"three\n")
        await folder.comes("a.log", b"one", b"two", b"three")
        folder.write("later.log", b"new\n")
        await folder.comes("later.log", b"new")
        status = tailer.status()
        assert (status.files, status.behind_bytes) == (2, 0)
        assert (status.counters.lines, status.counters.bytes) == (4, 18)
        assert {each.name for each in status.file_list} == {"a.log", "later.log"}
        producers = {batch.producer for batch in folder.taker.batches}
        assert len(producers) == 2
        sequences = [batch.sequence for batch in folder.taker.batches if batch.name == "a.log"]
        assert sequences == [1, 2]


@real
async def test_files_with_a_problem_are_listed_before_those_that_are_behind(
    folder: Folder,
) -> None:
    folder.taker.is_open.clear()
    folder.write("a.log", b"much that waits\n")
    folder.write("b.log", b"")
    async with folder.tailing() as tailer:
        await until(lambda: folder.taker.waiting == 1)
        await until(lambda: tailer.status().files == 2)
        names = [each.name for each in tailer.status().file_list]
        assert names == ["a.log", "b.log"]
        (held_up,) = (each for each in tailer._roster.files.values() if each.name == "b.log")
        held_up.problem = "it may not be read"
        assert [each.name for each in tailer.status().file_list] == ["b.log", "a.log"]
        folder.taker.is_open.set()


@real
async def test_a_clean_stop_sends_nothing_again(folder: Folder) -> None:
    folder.write("a.log", b"one\n")
    async with folder.tailing():
        await folder.comes("a.log", b"one")
    folder.write("a.log", b"two\n")
    async with folder.tailing():
        await folder.comes("a.log", b"one", b"two")
    assert folder.taker.resumed == []
    assert [batch.sequence for batch in folder.taker.batches] == [1, 1]
    assert len({batch.producer for batch in folder.taker.batches}) == 2


@real
async def test_a_batch_that_was_not_acked_is_made_again_under_its_old_name(folder: Folder) -> None:
    folder.write("a.log", b"one\ntwo\n")
    folder.taker.is_open.clear()
    tailer = await folder.start()
    await until(lambda: folder.taker.waiting == 1)
    folder.write("a.log", b"three\n")
    await tailer.close()
    folder.taker.is_open.set()
    async with folder.tailing() as tailer:
        await folder.comes("a.log", b"one", b"two", b"three")
        assert tailer.counters.resumed_batches >= 1
    assert folder.taker.resumed[0].sequence == 1
    assert folder.taker.resumed[0].count == 2


NUMBERS = MaskRule("numbers", "[0-9]+", "#")


@pytest.mark.parametrize(
    ("before", "after", "lines"),
    [
        ((), (NUMBERS,), (b"card 1", b"card #")),
        ((NUMBERS,), (), (b"card #", b"card 2")),
        ((NUMBERS,), (MaskRule("numbers", "[0-9]+", "*"),), (b"card #", b"card *")),
    ],
)
def test_a_batch_in_doubt_is_made_again_by_the_rules_that_made_it(
    before: tuple[MaskRule, ...],
    after: tuple[MaskRule, ...],
    lines: tuple[bytes, bytes],
    tmp_path: Path,
) -> None:
    @real
    async def scenario(folder: Folder) -> None:
        folder.change(mask_rules=before)
        folder.write("a.log", b"card 1\n")
        folder.taker.is_open.clear()
        for rules in (before, after):  # killed twice before it can be sent
            folder.change(mask_rules=rules)
            tailer = await folder.start(masking_of((), rules))
            await until(lambda: folder.taker.waiting == 1)
            await tailer.close()
            folder.taker.waiting = 0
        folder.taker.is_open.set()
        folder.write("a.log", b"card 2\n")
        async with folder.tailing(masking_of((), after)):
            await folder.comes("a.log", *lines)
        assert [batch.sequence for batch in folder.taker.resumed] == [1]

    scenario(tmp_path)


@real
async def test_a_batch_in_doubt_whose_rules_nobody_knows_waits_for_them(folder: Folder) -> None:
    """Release 0.1.0 noted no rules, only their digest."""
    folder.write("a.log", b"card 1\n")
    folder.taker.is_open.clear()
    tailer = await folder.start()
    await until(lambda: folder.taker.waiting == 1)
    await tailer._store.log.commit(SetState(0, b""))
    await tailer.close()
    folder.taker.is_open.set()
    folder.write("a.log", b"card 2\n")
    folder.change(mask_rules=(NUMBERS,))
    async with folder.tailing(masking_of((), (NUMBERS,))) as tailer:
        (problem,) = await tailer.drain()
        assert "other rules" in problem
        assert "a.log" not in folder.taker.lines
    folder.change(mask_rules=())
    async with folder.tailing() as tailer:
        await folder.comes("a.log", b"card 1", b"card 2")
        assert tailer.counters.unknown_batches == 0


@real
async def test_a_batch_of_a_file_that_is_gone_is_of_unknown_fate(folder: Folder) -> None:
    folder.write("a.log", b"one\n")
    folder.write("b.log", b"two\n")
    folder.taker.is_open.clear()
    tailer = await folder.start()
    await until(lambda: folder.taker.waiting == 2)
    await tailer.close()
    (folder.path / "a.log").unlink()
    (folder.path / "b.log").write_bytes(b"TWO\n")
    folder.taker.is_open.set()
    folder.change(forget_ms=0)
    async with folder.tailing() as tailer:
        await until(lambda: tailer.counters.unknown_batches == 2)
        assert tailer.counters.unknown_bytes == 8
        await folder.comes("b.log", b"TWO")
    assert "a.log" not in folder.taker.lines
    async with folder.tailing() as tailer:
        await asyncio.sleep(0.1)
        assert tailer.counters.unknown_batches == 0, "told once"


@real
async def test_a_file_rotated_by_rename_is_read_to_its_end_first(folder: Folder) -> None:
    folder.write("a.log", b"one\n")
    async with folder.tailing():
        await folder.comes("a.log", b"one")
        with (folder.path / "a.log").open("ab") as old:
            (folder.path / "a.log").rename(folder.path / "a.log.1")
            folder.write("a.log", b"four\n")
            old.write(b"two\nthree\n")
        await folder.comes("a.log", b"one", b"two", b"three", b"four")
    assert list(folder.taker.lines) == ["a.log"]


def _is_open(tailer: Tailer, inode: int) -> bool:
    return any(file.identity.inode == inode for file, _ in tailer._open_files.all())


@pytest.mark.parametrize("how", ["rename", "delete", "truncate"])
def test_files_that_are_rotated_between_two_scans_come_whole(tmp_path: Path, how: str) -> None:
    async def main() -> None:
        async with folder_of_logs(tmp_path) as folder:
            folder.change(scan_ms=3_600_000, rescan_ms=3_600_000)
            path, lines = folder.path / "a.log", [b"line %d" % number for number in range(20)]
            async with folder.tailing() as tailer:
                await until(lambda: tailer._scans == 1)
                for number, line in enumerate(lines):
                    folder.write("a.log", line + b"\n")
                    if how == "rename":
                        path.rename(f"{path}.{number}")  # at once: there may be several in one turn
                        continue
                    # What is gone for good has to be seen before.
                    await until(partial(_is_open, tailer, path.stat().st_ino))
                    if how == "delete":
                        path.unlink()
                    else:
                        await folder.comes("a.log", *lines[: number + 1])
                        os.truncate(path, 0)
                await folder.comes("a.log", *lines)
                assert tailer.counters.missed_files == tailer.counters.cut_bytes == 0
                assert tailer.status().scanned_because == ""

    asyncio.run(main())


@real
async def test_files_that_are_gone_before_they_can_be_opened_are_counted(folder: Folder) -> None:
    folder.change(rescan_ms=3_600_000)
    async with folder.tailing() as tailer:
        await until(lambda: tailer._scans == 1)
        for _ in range(3):
            folder.write("a.log", b"lost\n")
            (folder.path / "a.log").unlink()
        folder.write("a.log", b"kept\n")
        await until(lambda: tailer.counters.missed_files == 3)
        await folder.comes("a.log", b"kept")


@real
async def test_watched_files_that_do_not_change_cost_no_turn_of_the_loop(folder: Folder) -> None:
    folder.change(rescan_ms=3_600_000)
    names = [f"{number}.log" for number in range(50)]
    for name in names:
        folder.write(name, b"one\n")
    async with folder.tailing() as tailer:
        for name in names:
            await folder.comes(name, b"one")
        await until(lambda: tailer._rest_ms(tailer_module._now_ms()) > 3_000_000)
        assert tailer.status().scanned_because == ""
        folder.write("0.log", b"two\n")
        await folder.comes("0.log", b"one", b"two")


@real
async def test_where_nothing_is_watched_scans_are_enough(folder: Folder) -> None:
    folder.change(is_watching=False)
    folder.write("a.log", b"one\n")
    async with folder.tailing() as tailer:
        await folder.comes("a.log", b"one")
        (folder.path / "a.log").rename(folder.path / "a.log.1")
        folder.write("a.log", b"two\n")
        await folder.comes("a.log", b"one", b"two")
        assert tailer.status().scanned_because


@real
async def test_a_link_into_a_folder_of_its_own_is_watched_there(folder: Folder) -> None:
    folder.change(scan_ms=20, rescan_ms=3_600_000)
    real_folder = folder.path.parent / "real"
    real_folder.mkdir()
    (real_folder / "0.log").write_bytes(b"one\n")
    (folder.path / "a.log").symlink_to(real_folder / "0.log")
    async with folder.tailing() as tailer:
        await folder.comes("a.log", b"one")
        await until(
            lambda: tailer._scans == 2
        )  # the second one watches the folder that it leads to
        with (real_folder / "0.log").open("ab") as file:
            file.write(b"two\n")
        await folder.comes("a.log", b"one", b"two")
        # As a container's runtime rotates: the link stays.
        (real_folder / "0.log").rename(real_folder / "0.log.1")
        (real_folder / "0.log").write_bytes(b"three\n")
        await folder.comes("a.log", b"one", b"two", b"three")


@real
async def test_a_file_rotated_while_nobody_looks_is_found_by_its_inode(folder: Folder) -> None:
    folder.write("a.log", b"one\n")
    async with folder.tailing():
        await folder.comes("a.log", b"one")
    folder.write("a.log", b"two\n")
    (folder.path / "a.log").rename(folder.path / "rotated")
    folder.write("a.log", b"three\n")
    async with folder.tailing():
        await folder.comes("a.log", b"one", b"two", b"three")


@real
async def test_rotated_files_that_match_too_are_not_shipped_twice(folder: Folder) -> None:
    folder.change(paths=(f"{folder.path}/a*",))
    folder.write("a.log", b"one\n")
    async with folder.tailing() as tailer:
        await folder.comes("a.log", b"one")
        for number in range(3):
            for old in range(number, 0, -1):
                (folder.path / f"a.{old}").rename(folder.path / f"a.{old + 1}")
            (folder.path / "a.log").rename(folder.path / "a.1")
            folder.write("a.log", b"next %d\n" % number)
            await folder.comes("a.log", b"one", *(b"next %d" % each for each in range(number + 1)))
        await until(lambda: "a.3" in {each.name for each in tailer.status().file_list})
        folder.write("a.3", b"late\n")
        await folder.comes("a.3", b"late")
        with gzip.open(folder.path / "a.4.gz", "wb") as packed:
            packed.write(b"one\n")
        await asyncio.sleep(0.1)
    assert sorted(folder.taker.lines) == ["a.3", "a.log"]


@real
async def test_a_file_that_is_copied_and_truncated_is_begun_anew(folder: Folder) -> None:
    folder.write("a.log", b"one\ntwo\n")
    async with folder.tailing() as tailer:
        await folder.comes("a.log", b"one", b"two")
        shutil.copy(folder.path / "a.log", folder.path / "copy")
        os.truncate(folder.path / "a.log", 0)
        folder.write("a.log", b"three\n")
        await folder.comes("a.log", b"one", b"two", b"three")
        assert (tailer.counters.cuts, tailer.counters.cut_bytes) == (1, 0)


@real
async def test_a_file_that_is_cut_and_soon_longer_than_before_is_noticed(folder: Folder) -> None:
    folder.write("a.log", b"one\n")
    async with folder.tailing() as tailer:
        await folder.comes("a.log", b"one")
        (folder.path / "a.log").write_bytes(b"other\nand more\n")
        await folder.comes("a.log", b"one", b"other", b"and more")
        assert tailer.counters.cuts == 1


@real
async def test_bytes_that_were_cut_before_they_were_read_are_counted(folder: Folder) -> None:
    folder.change(batches_max=1)
    folder.write("a.log", b"one\n")
    folder.taker.is_open.clear()
    async with folder.tailing() as tailer:
        await until(lambda: folder.taker.waiting == 1)
        folder.write("a.log", b"lost\n")
        await until(lambda: tailer.status().file_list[0].size == 9)
        os.truncate(folder.path / "a.log", 0)
        await until(lambda: tailer.status().file_list[0].size == 0)
        folder.taker.is_open.set()
        folder.write("a.log", b"new\n")
        await folder.comes("a.log", b"one", b"new")
        assert tailer.counters.cut_bytes == 5


@real
async def test_a_deleted_file_is_read_to_its_end(folder: Folder) -> None:
    folder.write("a.log", b"one\n")
    folder.taker.is_open.clear()
    async with folder.tailing() as tailer:
        await until(lambda: folder.taker.waiting == 1)
        with (folder.path / "a.log").open("ab") as file:
            file.write(b"two\n")
            (folder.path / "a.log").unlink()
            file.write(b"end")
        folder.taker.is_open.set()
        await folder.comes("a.log", b"one", b"two", b"end")
        await until(lambda: tailer.status().files == 0)
        assert tailer.status().open_files == 0


@real
async def test_a_link_that_leads_elsewhere_is_a_rotation(folder: Folder) -> None:
    folder.write("day-1", b"one\n")
    (folder.path / "a.log").symlink_to("day-1")
    async with folder.tailing():
        await folder.comes("a.log", b"one")
        folder.write("day-1", b"two\n")
        folder.write("day-2", b"three\n")
        (folder.path / "new").symlink_to("day-2")
        (folder.path / "new").rename(folder.path / "a.log")
        await folder.comes("a.log", b"one", b"two", b"three")


@real
async def test_two_globs_and_two_links_ship_a_file_once(folder: Folder) -> None:
    folder.change(paths=(f"{folder.path}/*.log", f"{folder.path}/a*"))
    folder.write("a.log", b"one\n")
    (folder.path / "b.log").hardlink_to(folder.path / "a.log")
    (folder.path / "c.log").symlink_to("a.log")
    async with folder.tailing():
        await folder.comes("a.log", b"one")
        await asyncio.sleep(0.1)
    assert folder.taker.lines == {"a.log": [b"one"]}


@real
async def test_a_file_that_is_renamed_to_a_matching_name_goes_on(folder: Folder) -> None:
    folder.write("a.log", b"one\n")
    async with folder.tailing() as tailer:
        await folder.comes("a.log", b"one")
        (folder.path / "a.log").rename(folder.path / "b.log")
        await until(lambda: tailer.status().file_list[0].name == "b.log")
        folder.write("b.log", b"two\n")
        await folder.comes("b.log", b"two")
    assert folder.taker.lines["a.log"] == [b"one"]


@real
async def test_a_last_line_without_newline_waits_and_is_never_sent_twice(folder: Folder) -> None:
    folder.write("a.log", b"one\nrest")
    async with folder.tailing():
        await folder.comes("a.log", b"one")
        await folder.comes("a.log", b"one", b"rest")
        folder.write("a.log", b"\n")
        folder.write("a.log", b"next\n")
        await folder.comes("a.log", b"one", b"rest", b"next")
        folder.write("a.log", b"mid")
        await folder.comes("a.log", b"one", b"rest", b"next", b"mid")
    folder.write("a.log", b"\nlast\n")
    async with folder.tailing():
        await folder.comes("a.log", b"one", b"rest", b"next", b"mid", b"last")


@real
async def test_the_end_is_where_files_begin_that_are_there_at_first(folder: Folder) -> None:
    folder.change(start="end")
    folder.write("a.log", b"old\n")
    async with folder.tailing() as tailer:
        await until(lambda: tailer.status().files == 1)
        await until(lambda: tailer.status().file_list[0].offset == 4)
        folder.write("a.log", b"new\n")
        folder.write("b.log", b"later\n")
        await folder.comes("a.log", b"new")
        await folder.comes("b.log", b"later")
    folder.write("c.log", b"while away\n")
    async with folder.tailing():
        await folder.comes("c.log", b"while away")
    assert folder.taker.lines["a.log"] == [b"new"]


@real
async def test_where_the_end_was_is_known_after_a_restart_though_nothing_came(
    folder: Folder,
) -> None:
    folder.change(start="end")
    folder.write("a.log", b"old\n")
    async with folder.tailing() as tailer:
        await until(lambda: bool(tailer.status().file_list))
        await until(lambda: tailer.status().file_list[0].offset == 4)
    folder.write("a.log", b"new\n")
    async with folder.tailing():
        await folder.comes("a.log", b"new")


@real
async def test_records_of_several_lines_wait_for_their_end(folder: Folder) -> None:
    folder.change(multiline=Multiline(continues=r"^\s", wait_ms=50))
    folder.write("a.log", b"error\n at one\n")
    async with folder.tailing():
        folder.write("a.log", b" at two\nnext\n")
        await folder.comes("a.log", b"error\n at one\n at two")
        await folder.comes("a.log", b"error\n at one\n at two", b"next")


class _Stars:
    def mask_block(self, block: bytes) -> bytes:
        return block.replace(b"secret", b"***")


@real
async def test_what_is_sensitive_is_masked_before_it_leaves(folder: Folder) -> None:
    folder.write("a.log", b"the secret\nno more\n")
    async with folder.tailing(_Stars()):
        await folder.comes("a.log", b"the ***", b"no more")


@real
async def test_more_files_than_may_be_open_are_closed_and_opened_again(folder: Folder) -> None:
    folder.change(open_files_max=2)
    names = [f"{number}.log" for number in range(6)]
    for name in names:
        folder.write(name, b"one\n")
    async with folder.tailing() as tailer:
        for name in names:
            await folder.comes(name, b"one")
        for name in names:
            folder.write(name, b"two\n")
        for name in names:
            await folder.comes(name, b"one", b"two")
            assert tailer.status().open_files <= 2


@real
async def test_shipping_what_is_there_ends_when_all_is_stored(folder: Folder) -> None:
    folder.change(partial_ms=60_000, grace_ms=60_000)
    folder.write("a.log", b"one\n" * 1000 + b"end")
    folder.write("b.log", b"")
    async with folder.tailing() as tailer:
        assert await tailer.drain() == []
        assert len(folder.taker.lines["a.log"]) == 1001
        assert tailer.status().behind_bytes == 0


@real
async def test_a_file_that_may_not_be_read_is_told_and_tried_again(folder: Folder) -> None:
    if os.geteuid() == 0:
        (folder.path / "a.log").symlink_to("/proc/self/mem")  # opens, and cannot be read
        folder.write("b.log", b"one\n")
    else:
        folder.write("a.log", b"one\n")
        (folder.path / "a.log").chmod(0)
    async with folder.tailing() as tailer:
        await until(lambda: tailer.counters.troubles >= 2)
        assert any("cannot be read" in each.problem for each in tailer.status().file_list)
        if os.geteuid() == 0:
            await folder.comes("b.log", b"one")
        else:
            (folder.path / "a.log").chmod(0o600)
            await folder.comes("a.log", b"one")


@real
async def test_what_is_under_way_at_the_end_is_awaited_only_so_long(folder: Folder) -> None:
    folder.change(close_ms=50)
    folder.write("a.log", b"one\n")
    folder.taker.is_open.clear()
    tailer = await folder.start()
    await until(lambda: folder.taker.waiting == 1)
    async with asyncio.timeout(60):
        await tailer.close()
    folder.taker.is_open.set()
    async with folder.tailing():
        await folder.comes("a.log", b"one")


@pytest.mark.parametrize("count", [3])
def test_names_are_delivered_side_by_side_within_the_bound(tmp_path: Path, count: int) -> None:
    async def main() -> None:
        async with folder_of_logs(tmp_path) as folder:
            folder.change(batches_max=count)
            for number in range(5):
                folder.write(f"{number}.log", b"one\n")
            folder.taker.is_open.clear()
            async with folder.tailing():
                await until(lambda: folder.taker.waiting == count)
                await asyncio.sleep(0.1)
                assert folder.taker.waiting == count
                folder.taker.is_open.set()
                await until(lambda: len(folder.taker.lines) == 5)

    asyncio.run(main())
