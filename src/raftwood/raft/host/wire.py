"""What one host tells another in a turn: the messages of all groups, in one frame.

Little-endian:

    frame    magic "RWM" and the version (4), count of messages (4), heads, payloads of the runs
    head     group (8), kind (1), rejected (1), bytes of the context (2), source (8), term (8),
             log term (8), index (8), commit (8), reject hint (8), count of runs (4);
             then the context; then for each run its term (8), count (4) and bytes (4)

The runs of an append follow its index without a gap. The target is whoever receives the frame.
Kinds that never leave their node, forwarded proposals and snapshots are refused.
"""

import struct
from collections.abc import Iterator, Sequence
from typing import Final

from raftwood.base.errors import ProtocolError
from raftwood.base.files import Buffer
from raftwood.raft.core import Entry, Message, MessageKind
from raftwood.raft.core.messages import NO_ENTRIES
from raftwood.raft.host.runs import EncodedRun, RunBook, decode_run

FRAME_VERSION: Final = 1
MAGIC: Final = int.from_bytes(b"RWM", "little") | FRAME_VERSION << 24
NUMBER_MAX: Final = (1 << 63) - 1
TERM_MAX: Final = 1 << 48
"""A group never gets there by elections; a term that is taken over is never given up again."""
_FRAME: Final = struct.Struct("<II")
_HEAD: Final = struct.Struct("<QBBHQQQQQQI")
_RUN: Final = struct.Struct("<QII")
_APPEND: Final = MessageKind.APPEND

HEAD_BYTES: Final = _HEAD.size
SENT_KINDS: Final = frozenset(
    {
        MessageKind.APPEND,
        MessageKind.APPEND_RESPONSE,
        MessageKind.VOTE,
        MessageKind.VOTE_RESPONSE,
        MessageKind.PREVOTE,
        MessageKind.PREVOTE_RESPONSE,
        MessageKind.HEARTBEAT,
        MessageKind.HEARTBEAT_RESPONSE,
        MessageKind.TRANSFER_LEADER,
        MessageKind.TIMEOUT_NOW,
        MessageKind.READ_INDEX,
        MessageKind.READ_INDEX_RESPONSE,
    }
)
_WITHOUT_TERM: Final = (MessageKind.READ_INDEX, MessageKind.TRANSFER_LEADER)
"""They are forwarded to the leader as if they were local there."""
_SENT: Final = tuple(kind if kind in SENT_KINDS else None for kind in MessageKind)

Received = tuple[int, Message, list[tuple[EncodedRun, list[Entry]]]]
"""Group, message, and the runs that its entries came in."""


_NO_RUNS: Final[list[tuple[EncodedRun, list[Entry]]]] = []

FRAME_BYTES = 16 << 20
"""Where a frame ends and another begins, if there is more to say."""


def encode_frames(messages: Sequence[tuple[int, Message, RunBook]]) -> Iterator[list[Buffer]]:
    """Frames, in pieces; each message with its group and the book of its runs."""
    heads: list[bytes] = [b""]
    payloads: list[Buffer] = []
    size = count = 0
    for group, message, book in messages:
        if size >= FRAME_BYTES:
            heads[0] = _FRAME.pack(MAGIC, count)
            yield [b"".join(heads), *payloads]
            heads, payloads, size, count = [b""], [], 0, 0
        count += 1
        runs = book.runs(message.entries) if message.entries else ()
        heads.append(
            _HEAD.pack(
                group,
                message.kind,
                message.rejected,
                len(message.context),
                message.source,
                message.term,
                message.log_term,
                message.index,
                message.commit,
                message.reject_hint,
                len(runs),
            )
        )
        if message.context:
            heads.append(message.context)
        for run, _ in runs:
            heads.append(_RUN.pack(run.term, run.count, len(run.payload)))
            payloads.append(run.payload)
            size += len(run.payload)
    heads[0] = _FRAME.pack(MAGIC, count)
    yield [b"".join(heads), *payloads]


def decode_frame(data: Buffer, *, target: int) -> list[Received]:
    """The messages of a frame, or `ProtocolError`."""
    try:
        return _decode(data, target)
    except struct.error as error:
        raise ProtocolError("a raft frame ends too early") from error


def _decode(data: Buffer, target: int) -> list[Received]:
    magic, count = _FRAME.unpack_from(data)
    if magic != MAGIC:
        raise ProtocolError(f"not a raft frame of version {FRAME_VERSION}")
    if count * HEAD_BYTES > len(data):
        raise ProtocolError(f"{count} messages do not fit a frame of {len(data)} bytes")
    heads = []
    offset = _FRAME.size
    for _ in range(count):
        message, group, run_heads, offset = _decode_head(data, offset, target)
        heads.append((group, message, run_heads))
    view = memoryview(data)
    received: list[Received] = []
    for group, message, run_heads in heads:
        if not run_heads:
            received.append((group, message, _NO_RUNS))
            continue
        runs = []
        first_index = message.index + 1
        for term, entry_count, size in run_heads:
            if offset + size > len(view):
                raise ProtocolError("a run goes beyond its frame")
            run = EncodedRun(term, first_index, entry_count, view[offset : offset + size])
            runs.append((run, decode_run(run)))
            offset += size
            first_index += entry_count
        if len(runs) == 1:
            message.entries = runs[0][1]
        elif runs:
            message.entries = [entry for _, entries in runs for entry in entries]
        received.append((group, message, runs))
    if offset != len(view):
        raise ProtocolError(f"{len(view) - offset} bytes follow the last run of a frame")
    return received


def _decode_head(
    data: Buffer, offset: int, target: int
) -> tuple[Message, int, list[tuple[int, int, int]], int]:
    head = _HEAD.unpack_from(data, offset)
    group, number, rejected, context_bytes, source, term, log_term, index, commit, hint, runs = head
    kind = _SENT[number] if number < len(_SENT) else None
    if kind is None or rejected > 1:
        raise ProtocolError(f"a message of kind {number} does not come from another host")
    if max(group, source, term, log_term, index, commit, hint) > NUMBER_MAX:
        raise ProtocolError("a number of a raft message is above 63 bits")
    if term > TERM_MAX or (term == 0 and kind not in _WITHOUT_TERM):
        raise ProtocolError(f"{kind.name} is of term {term}")
    offset += HEAD_BYTES
    context = b""
    if context_bytes:
        context = bytes(data[offset : offset + context_bytes])
        if len(context) != context_bytes:
            raise ProtocolError("a raft frame ends within a context")
        offset += context_bytes
    if runs and kind is not _APPEND:
        raise ProtocolError(f"{kind.name} carries no entries")
    if runs * _RUN.size > len(data) - offset:
        raise ProtocolError(f"{runs} runs do not fit the frame")
    run_heads: list[tuple[int, int, int]] = []
    for _ in range(runs):
        run_heads.append(_RUN.unpack_from(data, offset))
        if not 0 < run_heads[-1][0] <= term:
            raise ProtocolError(f"a run is of term {run_heads[-1][0]} in a message of term {term}")
        offset += _RUN.size
    message = Message(
        kind,
        target,
        source,
        term,
        log_term,
        index,
        NO_ENTRIES,
        commit,
        rejected == 1,
        hint,
        context=context,
    )
    return message, group, run_heads, offset
