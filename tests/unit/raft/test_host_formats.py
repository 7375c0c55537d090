"""What raft hosts store and send: runs, frames, states, and the cache of entries."""

import pytest

from raftwood.base.errors import NotLeader, ProtocolError, StoreDamaged, UnsupportedVersion
from raftwood.raft.core import Entry, EntryKind, Message, MessageKind
from raftwood.raft.entry_format import EncodedRun, RunCache, decode_run, encode_run
from raftwood.raft.group_log import (
    STATE_VERSION,
    GroupState,
    RaftEntryCache,
    decode_state,
    membership_of,
)
from raftwood.raft.transport import SENT_KINDS, TERM_MAX, decode_frame, encode_frames


def _encode(messages: list[tuple[int, Message, RunCache]]) -> bytes:
    (frame,) = encode_frames(messages)
    return b"".join(frame)


def _entries(first: int, count: int, term: int = 1) -> list[Entry]:
    return [Entry(term, index, payload=b"%d" % index) for index in range(first, first + count)]


def test_a_run_has_golden_bytes_and_comes_back() -> None:
    entries = [Entry(2, 5, payload=b"ab"), Entry(2, 6, EntryKind.CHANGE_V1, b"c")]
    entries.append(Entry(2, 7, EntryKind.CONTROL, b"d"))
    run = encode_run(entries)
    assert run == EncodedRun(2, 5, 3, bytes.fromhex("0200000001000040010000c0") + b"abcd")
    assert decode_run(run) == entries


@pytest.mark.parametrize("payload", [b"", b"\1\0\0\0", b"\1\0\0\0ab", b"\1\0\0\xc0"])
def test_a_run_that_does_not_add_up_is_refused(payload: bytes) -> None:
    with pytest.raises(ProtocolError):
        decode_run(EncodedRun(1, 1, 1, payload))


def test_a_book_splits_at_terms_and_hands_out_known_runs_as_they_are() -> None:
    book = RunCache()
    entries = _entries(1, 3) + _entries(4, 2, term=2)
    known = encode_run(entries[1:3])
    book.remember(known, entries[1:3])
    runs = book.runs(entries)
    assert [(run.first_index, run.count, run.term) for run, _ in runs] == [
        (1, 1, 1),
        (2, 2, 1),
        (4, 2, 2),
    ]
    assert runs[1][0] is known
    assert book.runs(entries)[2][0] is runs[2][0]


def test_a_book_does_not_take_other_entries_of_the_same_index_for_known_ones() -> None:
    book = RunCache()
    old = _entries(1, 2)
    book.runs(old)
    new = [Entry(3, 1, payload=b"x"), Entry(3, 2, payload=b"y")]
    ((run, _),) = book.runs(new)
    assert decode_run(run) == new


def test_a_frame_has_golden_bytes() -> None:
    message = Message(MessageKind.HEARTBEAT, 2, 1, 4, commit=6, context=b"r")
    words = "52574d01 01000000 0900000000000000 07 00 0100 0100000000000000 0400000000000000"
    words += "0000000000000000 0000000000000000 0600000000000000 0000000000000000 00000000 72"
    assert _encode([(9, message, RunCache())]) == bytes.fromhex(words)


@pytest.mark.parametrize("kind", sorted(SENT_KINDS))
def test_every_kind_comes_back(kind: MessageKind) -> None:
    entries = _entries(8, 2) if kind is MessageKind.APPEND else []
    message = Message(kind, 2, 1, 4, 3, 7, entries, 6, True, 5, context=b"context")
    ((group, back, _),) = decode_frame(_encode([(1, message, RunCache())]), target=2)
    assert (group, back) == (1, message)


@pytest.mark.parametrize("kind", [kind for kind in MessageKind if kind not in SENT_KINDS])
def test_what_never_leaves_its_node_is_refused(kind: MessageKind) -> None:
    frame = _encode([(1, Message(kind, 2, 1), RunCache())])
    with pytest.raises(ProtocolError):
        decode_frame(frame, target=2)


def test_a_frame_cut_anywhere_is_refused() -> None:
    append = Message(MessageKind.APPEND, 2, 1, 4, 3, 7, _entries(8, 2), 6, context=b"c")
    frame = _encode([(1, append, RunCache())])
    for end in range(len(frame)):
        with pytest.raises(ProtocolError):
            decode_frame(frame[:end], target=2)


@pytest.mark.parametrize("kind", sorted(SENT_KINDS))
def test_a_message_is_of_a_term_that_a_group_can_reach(kind: MessageKind) -> None:
    for term in (0, TERM_MAX + 1):
        frame = _encode([(1, Message(kind, 2, 1, term), RunCache())])
        if term == 0 and kind in (MessageKind.READ_INDEX, MessageKind.TRANSFER_LEADER):
            decode_frame(frame, target=2)
            continue
        with pytest.raises(ProtocolError, match=f"of term {term}"):
            decode_frame(frame, target=2)


@pytest.mark.parametrize("term", [0, 5])
def test_entries_are_not_of_a_later_term_than_their_message(term: int) -> None:
    append = Message(MessageKind.APPEND, 2, 1, 4, 3, 7, _entries(8, 2, term=term), 6)
    with pytest.raises(ProtocolError, match=f"of term {term}"):
        decode_frame(_encode([(1, append, RunCache())]), target=2)


def test_a_state_comes_back_and_a_newer_one_is_refused() -> None:
    state = GroupState(STATE_VERSION, 4, 2, 17, (1, 2, 3), 3, (5, 9))
    assert decode_state(1, state.encoded()) == state
    assert membership_of(GroupState(1, 0, 0, 0, (1, 2))).voters == (1, 2)
    with pytest.raises(UnsupportedVersion):
        decode_state(1, GroupState(STATE_VERSION + 1, 4, 2, 17, ()).encoded())
    for data in (b"", b"\x93\x01\x02\x03", b"\xff"):
        with pytest.raises(StoreDamaged):
            decode_state(1, data)


def test_the_cache_forgets_applied_runs_only() -> None:
    cache = RaftEntryCache(1)
    for first in (1, 3, 5):
        cache.append(_entries(first, 2), 100)
    cache.shrink(applied=3, bytes_max=10)
    assert (cache.first_index, cache.next_index, cache.size_bytes) == (3, 7, 200)
    assert cache.get(2) is None
    assert cache.slice(4, 6) == _entries(4, 2)


def test_the_cache_is_cut_at_the_start_of_a_run() -> None:
    cache = RaftEntryCache(1)
    cache.append(_entries(1, 2), 100)
    cache.append(_entries(3, 3), 100)
    assert cache.run_start(4) == 3
    cache.truncate(3)
    assert (cache.next_index, cache.size_bytes) == (3, 100)


def test_not_leader_names_the_leader_and_can_be_tried_again() -> None:
    error = NotLeader("node 2 leads", leader=2)
    assert (error.leader, error.retriable, error.message) == (2, True, "node 2 leads")
