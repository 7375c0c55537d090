"""The frames between raft hosts, as a target for a mutator."""

from raftwood.base.errors import ProtocolError
from raftwood.raft.core import Entry, EntryKind, Message, MessageKind
from raftwood.raft.entry_format import RunCache
from raftwood.raft.transport import decode_frame, encode_frames


def _encode(messages: list[tuple[int, Message, RunCache]]) -> bytes:
    (frame,) = encode_frames(messages)
    return b"".join(frame)


def target(data: bytes) -> None:
    """Whatever is taken is said in the same bytes again; all else is a ProtocolError."""
    try:
        received = decode_frame(data, target=2)
    except ProtocolError:
        return
    said = []
    for group, message, runs in received:
        book = RunCache()
        for run, entries in runs:
            book.remember(run, entries)
        said.append((group, message, book))
    # A book forgets after so many runs; then they are joined, which says the same in other bytes.
    if all(len(runs) < 64 for _, _, runs in received):
        assert _encode(said) == data


def seeds() -> list[bytes]:
    """Valid inputs for `target`."""
    entries = [
        Entry(3, 8, EntryKind.NORMAL, b"first"),
        Entry(3, 9, EntryKind.NORMAL, b""),
        Entry(4, 10, EntryKind.CHANGE_V2, b"change"),
    ]
    append = Message(MessageKind.APPEND, 2, 1, 4, 3, 7, entries, 6)
    answer = Message(
        MessageKind.APPEND_RESPONSE, 2, 1, 4, index=7, rejected=True, reject_hint=5, log_term=3
    )
    heartbeat = Message(MessageKind.HEARTBEAT, 2, 1, 4, commit=6, context=b"read 1")
    frames = [[], [(1, append)], [(1, answer)], [(9, heartbeat), (1, append), (2, answer)]]
    return [_encode([(group, each, RunCache()) for group, each in frame]) for frame in frames]
