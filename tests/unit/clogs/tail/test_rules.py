"""What becomes of files that are renamed, cut, replaced and gone: rules without files."""

import pytest
from msgspec.structs import replace

from raftwood.base.compression import Codec
from raftwood.clogs.tail.batch_maker import Forced
from raftwood.clogs.tail.checkpoints import FileHead, FileIdentity, FileLook, FoundFile
from raftwood.clogs.tail.followed_file import FollowedFile
from raftwood.clogs.tail.rules import (
    Action,
    BeginFile,
    CheckFile,
    CloseFile,
    FileVerdict,
    ForgetFile,
    MissFile,
    RefuseFile,
    Roster,
    forced,
    judged,
    wants_reading,
)
from raftwood.clogs.tail.settings import Multiline, TailSettings

SETTINGS = TailSettings(
    paths=("/l/*",), name="{base}", grace_ms=100, grace_ms_max=1000, forget_ms=500, files_max=5
)


class Files:
    """A roster, and scans of it."""

    def __init__(self, settings: TailSettings = SETTINGS) -> None:
        self.settings = settings
        self.roster = Roster(settings, lambda number, _: bytes([number]) * 16)
        self.now_ms = 0

    def scan(self, *found: tuple[str, int, int], unmatched: tuple[str, ...] = ()) -> list[Action]:
        """Paths, inodes and sizes."""
        self.now_ms += 10
        seen = [
            FoundFile(path, FileIdentity(1, inode), size, self.now_ms, path not in unmatched)
            for path, inode, size in found
        ]
        return self.roster.scanned(seen, now_ms=self.now_ms)

    def visit(self, *found: tuple[str, int, int], **origins: str) -> list[Action]:
        """Paths, inodes (0: nothing is there) and sizes; origins by the base names of paths."""
        self.now_ms += 10
        visited = [
            (path, FoundFile(path, FileIdentity(1, inode), size, self.now_ms, "." not in path))
            if inode
            else (path, None)
            for path, inode, size in found
        ]
        named = {f"/l/{path.replace('_', '.')}": origin for path, origin in origins.items()}
        return self.roster.noticed(visited, named, now_ms=self.now_ms)

    def one(self, number: int = 1) -> FollowedFile:
        return self.roster.files[number]

    def read_all(self, number: int = 1) -> None:
        file = self.one(number)
        file.read_to = file.offset = file.size

    def turn(self, name: str = "a") -> list[int]:
        return [file.number for file in self.roster.turn(name)]

    def settle(self, number: int = 1, *, later_ms: int = 0) -> list[Action]:
        self.now_ms += later_ms
        return self.roster.settle(self.one(number), now_ms=self.now_ms)


def test_a_file_is_followed_once_however_many_paths_lead_to_it() -> None:
    files = Files()
    actions = files.scan(("/l/a", 1, 5), ("/l/b", 1, 5))
    assert [action.file.path for action in actions if isinstance(action, BeginFile)] == ["/l/a"]
    assert files.scan(("/l/a", 1, 9), ("/l/b", 1, 9)) == []
    assert files.one().size == 9


def test_a_renamed_file_is_read_to_its_end_before_its_successor() -> None:
    files = Files()
    files.scan(("/l/a", 1, 5))
    files.scan(("/l/a", 2, 3), ("/l/a.1", 1, 8))
    assert files.turn() == [1]
    assert files.settle(later_ms=5000) == [], "it is not read to its end"
    files.read_all()
    files.one().grown_ms = files.now_ms
    assert files.settle(later_ms=99) == [], "its writer may still append"
    assert files.turn() == [1]
    assert files.settle(later_ms=1) == []
    assert files.turn() == [2]
    assert (files.one().name, files.one().left_ms) == ("a.1", None)
    assert files.turn("a.1") == [1]


def test_a_renamed_file_that_is_under_way_is_not_settled() -> None:
    files = Files()
    files.scan(("/l/a", 1, 5))
    file = files.one()
    file.intend(
        file.intended(b"hello", codec=Codec.NONE, rules=0, ends_mid_line=True),
        FileHead.of(b"hello", 5),
    )
    files.scan()
    assert files.settle(later_ms=5000) == []
    file.settled(file.intents[0])
    assert files.settle() == [CloseFile(file)]


def test_a_file_that_no_glob_matches_any_more_is_known_for_a_while() -> None:
    files = Files()
    files.scan(("/l/a", 1, 5))
    files.read_all()
    files.scan()
    assert files.settle(later_ms=100) == [CloseFile(files.one())]
    assert files.turn() == []
    files.scan(("/l/a", 1, 5))
    assert files.turn() == [1], "it came back"
    files.scan()
    file = files.one()
    files.settle(later_ms=100)
    files.now_ms += 500
    assert files.scan() == [ForgetFile(file, "")]
    assert file.is_forgotten
    assert files.roster.files == {}


def test_a_deleted_file_is_forgotten_once_it_is_read() -> None:
    files = Files()
    files.scan(("/l/a", 1, 5))
    file = files.one()
    file.is_held, file.links = True, 0
    files.scan()
    assert files.settle(later_ms=5000) == []
    files.read_all()
    assert files.settle() == [ForgetFile(file, "")]


def test_a_file_that_vanished_unread_while_it_was_closed_is_lost_and_told() -> None:
    files = Files()
    files.scan(("/l/a", 1, 5))
    file = files.one()
    files.scan()
    assert files.roster.wanted() == [("/l", 1)], "it is looked for under another name"
    assert files.scan() == [MissFile(file)]
    assert files.scan() == []
    files.now_ms += 500
    (action,) = files.scan()
    assert action == ForgetFile(file, "it cannot be found any more")


def test_a_file_that_keeps_growing_without_its_name_holds_its_successor_up_only_so_long() -> None:
    files = Files()
    files.scan(("/l/a", 1, 5))
    files.scan(("/l/a", 2, 3), ("/l/a.1", 1, 8))
    for _ in range(13):
        files.now_ms += 90
        files.one().looked(files.one().size + 1, files.now_ms, now_ms=files.now_ms)
        files.read_all()
        files.settle()
    assert files.turn() == [1, 2]


def test_a_file_that_cannot_be_read_holds_its_successor_up_only_so_long() -> None:
    files = Files()
    files.scan(("/l/a", 1, 5))
    files.scan(("/l/a", 2, 3), ("/l/a.1", 1, 5))
    files.settle(later_ms=5000)
    assert files.turn() == [1], "it is only far behind"
    files.one().problem = "it cannot be read"
    files.settle()
    assert files.turn() == [1, 2]


def test_a_restored_file_with_something_left_is_missed_at_once() -> None:
    files = Files()
    files.scan(("/l/a", 1, 5))
    file = files.one()
    intent = file.intended(b"hello", codec=Codec.NONE, rules=0, ends_mid_line=True)
    again = Files()
    assert again.roster.restore(7, file.checkpoint(intent=intent), now_ms=0) == []
    restored = again.one(7)
    assert again.scan() == [MissFile(restored)]
    assert again.scan() == []
    again.now_ms += 500
    assert again.scan() == [ForgetFile(restored, "it cannot be found any more")]


def test_several_files_of_one_name_take_turns() -> None:
    files = Files(TailSettings(paths=("/l/*",), name="all"))
    files.scan(("/l/a", 1, 5), ("/l/b", 2, 5))
    assert files.turn("all") == [1, 2]
    files.one().served = 1
    assert files.turn("all") == [2, 1]


def test_too_many_files_and_bad_names_are_refused_and_told_once() -> None:
    files = Files()
    bad = ("/l/\x00", 99, 1)
    many = [(f"/l/{number}", number, 1) for number in range(1, 8)]
    told = [action for action in files.scan(bad, *many) if isinstance(action, RefuseFile)]
    assert [action.path for action in told] == ["/l/\x00", "/l/6", "/l/7"]
    assert "files_max" in told[1].reason
    assert files.scan(bad, *many) == []
    assert len(files.roster.files) == 5


def _look(data: bytes, *, inode: int = 1) -> FileLook:
    return FileLook(FileIdentity(1, inode), len(data), 0, 1, data[:1024])


@pytest.mark.parametrize(
    ("data", "is_held", "verdict"),
    [
        (b"hello", True, FileVerdict.SAME),
        (b"hello and more", False, FileVerdict.SAME),
        (b"hell", True, FileVerdict.CUT),
        (b"", False, FileVerdict.OTHER),
        (b"other and longer", True, FileVerdict.CUT),
        (b"other and longer", False, FileVerdict.OTHER),
    ],
)
def test_a_file_is_known_by_its_beginning_and_its_size(
    data: bytes, is_held: bool, verdict: FileVerdict
) -> None:
    files = Files()
    files.scan(("/l/a", 1, 5))
    file = files.one()
    file.read_to, file.head = 5, FileHead.of(b"hello", 5)
    assert judged(file, _look(data), is_held=is_held) is verdict
    assert judged(file, _look(data, inode=2), is_held=is_held) is FileVerdict.ELSEWHERE


def test_a_file_that_was_made_at_another_time_is_another_one_whatever_is_in_it() -> None:
    files = Files()
    files.scan(("/l/a", 1, 5))
    file = files.one()
    file.read_to, file.head, file.birth_ns = 5, FileHead.of(b"hello", 5), 7
    same, other = _look(b"hello you"), _look(b"hello you")
    same, other = replace(same, birth_ns=7), replace(other, birth_ns=8)
    assert judged(file, same, is_held=False) is FileVerdict.SAME
    assert judged(file, other, is_held=False) is FileVerdict.OTHER
    assert judged(file, replace(same, birth_ns=0), is_held=True) is FileVerdict.SAME, "not asked"


def test_a_file_that_is_shorter_than_what_was_read_begins_anew_and_tells_what_is_lost() -> None:
    files = Files()
    files.scan(("/l/a", 1, 2000))
    file = files.one()
    file.read_to, file.head = 1500, FileHead.of(b"x" * 1024, 1024)
    file.looked(10, 5, now_ms=3)
    assert judged(file, _look(b"x" * 1400), is_held=False) is FileVerdict.CUT
    assert file.begin_anew() == 500
    assert (file.read_to, file.offset, file.head, file.cuts) == (0, 0, FileHead(), 1)


def test_an_ack_from_before_a_cut_moves_nothing() -> None:
    files = Files()
    files.scan(("/l/a", 1, 5))
    file = files.one()
    file.intend(
        file.intended(b"hello", codec=Codec.NONE, rules=0, ends_mid_line=True),
        FileHead.of(b"hello", 5),
    )
    file.begin_anew()
    file.settled(file.intents[0])
    assert (file.offset, file.is_mid_line) == (0, False)


def test_what_was_read_while_the_file_changed_is_of_no_use() -> None:
    files = Files()
    files.scan(("/l/a", 1, 5))
    file = files.one()
    assert file.head_after(b"hello", 5, _look(b"hello")) == FileHead.of(b"hello", 5)
    assert file.head_after(b"hello", 5, _look(b"other")) is None
    assert file.head_after(b"hello", 5, _look(b"hel")) is None
    file.read_to, file.head = 5, FileHead.of(b"hello", 5)
    assert file.head_after(b" you", 4, _look(b"hello you")) == FileHead.of(b"hello you", 9)
    assert file.head_after(b" you", 4, _look(b"hello YOU")) is None
    file.read_to = 2000
    assert file.head_after(b"more", 4, _look(b"")) is file.head


def test_an_inode_that_is_used_again_is_another_file_with_another_producer() -> None:
    files = Files()
    files.scan(("/l/a", 1, 5))
    old = files.one()
    forget, begin = files.roster.replace(old, now_ms=files.now_ms)
    assert forget == ForgetFile(old, "its inode is another file's by now")
    assert isinstance(begin, BeginFile)
    assert begin.file.producer != old.producer
    assert begin.file.identity == old.identity
    assert list(files.roster.files.values()) == [begin.file]


def test_a_restored_file_is_looked_for_and_found_under_another_name() -> None:
    files = Files()
    files.scan(("/l/a", 1, 5))
    again = Files()
    again.roster.restore(7, files.one().checkpoint(), now_ms=0)
    assert again.turn() == []
    assert again.roster.wanted() == [("/l", 1)]
    again.scan(("/l/a", 2, 5), ("/l/old", 1, 9), unmatched=("/l/old",))
    assert again.turn() == [7]
    assert again.roster.wanted() == [("/l", 1)], "as long as nobody holds it open"
    again.one(7).is_held = True
    assert again.roster.wanted() == []


def test_of_two_files_with_one_inode_the_later_one_is_restored() -> None:
    files = Files()
    files.scan(("/l/a", 1, 5))
    again = Files()
    again.roster.restore(3, files.one().checkpoint(), now_ms=0)
    old = again.one(3)
    actions = again.roster.restore(7, files.one().checkpoint(), now_ms=0)
    assert actions == [ForgetFile(old, "its inode is another file's by now")]
    again.scan(("/l/a", 1, 5))
    assert again.turn() == [7]


def test_another_rule_for_names_counts_once_nothing_is_under_way() -> None:
    files = Files()
    files.scan(("/l/a", 1, 5))
    file = files.one()
    intent = file.intended(b"hello", codec=Codec.NONE, rules=0, ends_mid_line=True)
    again = Files(replace(SETTINGS, name="new-{base}"))
    again.roster.restore(7, file.checkpoint(intent=intent), now_ms=0)
    again.scan(("/l/a", 1, 5))
    again.settle(7)
    assert again.turn("a") == [7], "its batch has the old name"
    again.one(7).settled(intent)
    again.settle(7)
    assert again.turn("a") == []
    assert again.turn("new-a") == [7]


def test_a_device_may_have_another_number_after_a_restart() -> None:
    files = Files()
    files.scan(("/l/a", 1, 5))
    again = Files()
    again.roster.restore(7, files.one().checkpoint(), now_ms=0)
    found = FoundFile("/l/a", FileIdentity(9, 1), 5, 1)
    assert again.roster.scanned([found], now_ms=1) == []
    assert again.one(7).identity == FileIdentity(9, 1)
    assert again.roster.scanned([found], now_ms=2) == []


@pytest.mark.parametrize(
    ("idle_ms", "is_left", "is_last", "force"),
    [
        (0, False, False, Forced.NOTHING),
        (50, False, False, Forced.LINES),
        (99, True, False, Forced.LINES),
        (100, True, False, Forced.ALL),
        (100, False, False, Forced.LINES),
        (5000, False, False, Forced.ALL),
        (0, False, True, Forced.ALL),
    ],
)
def test_the_end_of_a_file_is_taken_when_it_has_waited(
    idle_ms: int, is_left: bool, is_last: bool, force: Forced
) -> None:
    settings = TailSettings(
        paths=("/l/*",), grace_ms=100, multiline=Multiline(start="a", wait_ms=50)
    )
    files = Files(settings)
    files.scan(("/l/a", 1, 5))
    file = files.one()
    file.left_ms = file.grown_ms if is_left else None
    now_ms = file.grown_ms + idle_ms
    assert forced(file, settings, now_ms=now_ms, is_last=is_last) is force


def test_a_file_is_read_again_when_it_changed_or_its_end_is_due() -> None:
    files = Files()
    files.scan(("/l/a", 1, 5))
    file = files.one()
    assert wants_reading(file, Forced.NOTHING)
    file.nothing_taken(Forced.NOTHING)
    assert not wants_reading(file, Forced.NOTHING)
    assert wants_reading(file, Forced.ALL)
    file.nothing_taken(Forced.ALL)
    assert not wants_reading(file, Forced.ALL)
    file.looked(5, file.mtime_ns + 1, now_ms=9)
    assert wants_reading(file, Forced.NOTHING), "the same size, at another time"


def test_a_file_that_was_renamed_before_it_was_seen_is_read_before_its_successor() -> None:
    files = Files()
    actions = files.visit(("/l/a.1", 1, 5), ("/l/a", 2, 7), a_1="/l/a")
    assert [each.file.path for each in actions if isinstance(each, BeginFile)] == ["/l/a.1", "/l/a"]
    assert {file.name for file in files.roster.files.values()} == {"a"}
    assert files.turn() == [1]
    files.read_all(1)
    files.settle(1)
    files.settle(1, later_ms=200)
    assert files.turn() == [2]


def test_a_file_that_left_its_path_waits_for_its_new_one() -> None:
    files = Files()
    files.scan(("/l/a", 1, 5))
    files.one().is_held = True
    files.visit(("/l/a", 0, 0))
    assert files.one().left_ms is not None
    files.visit(("/l/a", 2, 5), ("/l/a.1", 1, 6))
    assert (files.one(1).path, files.one(1).size, files.one(2).path) == ("/l/a.1", 6, "/l/a")
    # One that has two paths keeps its own.
    files.visit(("/l/b", 2, 9), ("/l/a", 2, 9))
    assert (files.one(2).path, files.one(2).left_ms) == ("/l/a", None)


def test_an_inode_that_comes_to_a_path_unseen_is_looked_into() -> None:
    files = Files()
    files.scan(("/l/a", 1, 5))
    files.read_all()
    assert files.visit(("/l/a", 1, 9)) == [], "it has grown where it was"
    assert files.visit(("/l/a.1", 1, 9), ("/l/a", 0, 0), a_1="/l/a") == [], "it was seen to go"
    assert files.visit(("/l/b", 1, 9)) == [CheckFile(files.one())]
    # It is another file: that has the name of the path where it was before.
    files.visit(("/l/b.1", 1, 9), b_1="/l/b")
    actions = files.roster.replace(files.one(), now_ms=files.now_ms)
    assert [each.file.name for each in actions if isinstance(each, BeginFile)] == ["b"]


def test_an_inode_of_which_nothing_was_read_is_begun_anew_at_another_path() -> None:
    files = Files()
    files.scan(("/l/a", 1, 0))
    actions = files.visit(("/l/b", 1, 5))
    assert [type(each) for each in actions] == [ForgetFile, BeginFile]
    assert files.one(2).name == "b"
