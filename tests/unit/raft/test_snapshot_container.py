"""The container of a snapshot: every change of its bytes is noticed, at every place of it."""

import random
import struct
from collections.abc import Iterator

import pytest
from tests.kits.disk.log_in_memory import run
from tests.kits.fuzz.snapshots import container, with_checksums
from tests.kits.raft.snapshots import FOLDER, contents, meta_of, recover, write_file

from raftwood.base.errors import StoreDamaged
from raftwood.raft import snapshot_files
from raftwood.raft.snapshot_format import (
    END_BYTES,
    FRAME_BYTES,
    HEADER_BYTES,
    META_BYTES_MAX,
    SnapshotDecoder,
    SnapshotEncoder,
    SnapshotFrame,
    SnapshotFrameKind,
    claims_no_files,
)
from raftwood.testing import ImmediateFiles

CHUNKS = [b"first", b"", b"x" * 700, b"last"]
FILES = {"table.sst": [b"t" * 300, b"u" * 300], "empty": []}
DATA = container(meta_of(), CHUNKS, FILES)


def _frames(data: bytes) -> Iterator[tuple[int, int]]:
    """Where each frame begins and ends."""
    offset = HEADER_BYTES + int(struct.unpack_from("<I", data, 12)[0])
    while offset < len(data):
        end = offset + FRAME_BYTES + int(struct.unpack_from("<I", data, offset + 12)[0])
        yield offset, end
        offset = end


FRAMES = list(_frames(DATA))


def _decode(data: bytes) -> list[SnapshotFrame]:
    decoder = SnapshotDecoder()
    parts = decoder.feed(data)
    decoder.finish()
    return parts


def test_a_container_gives_its_parts_back_whichever_way_it_is_cut() -> None:
    whole = _decode(DATA)
    assert [part.payload for part in whole if part.kind is SnapshotFrameKind.CHUNK] == CHUNKS
    assert len(whole) == len(FRAMES)
    for size in (1, 7, 100):
        decoder = SnapshotDecoder()
        pieces = [DATA[offset : offset + size] for offset in range(0, len(DATA), size)]
        assert [part for piece in pieces for part in decoder.feed(piece)] == whole
        assert decoder.meta == meta_of()
        decoder.finish()


def _structural_places() -> list[int]:
    places = [*range(HEADER_BYTES + 2)]
    for begin, end in FRAMES:
        places += [*range(begin, begin + FRAME_BYTES), begin + FRAME_BYTES, end - 1]
    return sorted({place for place in places if place < len(DATA)})


def test_a_flipped_bit_is_noticed_at_every_place() -> None:
    """All structural bytes, each in every bit; a thousand others by chance."""
    rng = random.Random(1)
    flips = [(place, bit) for place in _structural_places() for bit in range(8)]
    flips += [(rng.randrange(len(DATA)), rng.randrange(8)) for _ in range(1000)]
    for place, bit in flips:
        bad = bytearray(DATA)
        bad[place] ^= 1 << bit
        with pytest.raises(StoreDamaged):
            _decode(bytes(bad))


def test_a_cut_is_noticed_at_every_place() -> None:
    for length in range(len(DATA)):
        with pytest.raises(StoreDamaged):
            _decode(DATA[:length])


def test_frames_that_are_missing_moved_or_repeated_are_noticed() -> None:
    head, frames = DATA[: FRAMES[0][0]], [DATA[begin:end] for begin, end in FRAMES]
    changed = []
    for number in range(len(frames) - 1):
        changed.append(frames[:number] + frames[number + 1 :])
        changed.append(frames[: number + 1] + frames[number:])
        changed.append(
            [*frames[:number], frames[number + 1], frames[number], *frames[number + 2 :]]
        )
    for each in changed:
        bad = head + b"".join(each)
        with pytest.raises(StoreDamaged):
            _decode(bad)
        # The end's totals tell it even where somebody made all checksums right.
        if len(bad) != len(DATA):
            with pytest.raises(StoreDamaged):
                _decode(with_checksums(bad))


def test_a_frame_of_another_snapshot_is_noticed() -> None:
    other = container(meta_of(index=11), CHUNKS, FILES)
    assert len(other) == len(DATA)
    for begin, end in FRAMES:
        with pytest.raises(StoreDamaged, match="checksum"):
            _decode(DATA[:begin] + other[begin:end] + DATA[end:])


@pytest.mark.parametrize(
    ("frames", "reason"),
    [
        (
            [(SnapshotFrameKind.FILE, b"a"), (SnapshotFrameKind.CHUNK, b"x")],
            "follows an extra file",
        ),
        ([(SnapshotFrameKind.FILE_PIECE, b"x")], "no name before"),
        ([(SnapshotFrameKind.FILE, b"../../etc/passwd")], "not allowed"),
        ([(SnapshotFrameKind.FILE, b"\xff")], "not allowed"),
        ([(SnapshotFrameKind.FILE, b"a"), (SnapshotFrameKind.FILE, b"a")], "twice"),
        ([(SnapshotFrameKind.FILE, b"%d" % number) for number in range(1025)], "too many"),
        ([(SnapshotFrameKind.END, b"")], "totals"),
        ([(5, b"")], "no frame begins here"),
    ],
)
def test_frames_in_the_wrong_order_are_refused(
    frames: list[tuple[int, bytes]], reason: str
) -> None:
    data = SnapshotEncoder(meta_of()).header
    for kind, payload in frames:
        data += struct.pack("<QII", 0, kind, len(payload)) + payload
    with pytest.raises(StoreDamaged, match=reason):
        _decode(with_checksums(data))


def test_a_header_cannot_ask_for_more_memory_or_depth_than_there_is() -> None:
    with pytest.raises(StoreDamaged, match="too many"):
        SnapshotDecoder().feed(DATA[:12] + struct.pack("<I", META_BYTES_MAX + 1) + bytes(8))
    # Fields inside fields without an end, in a field that this version does not know.
    meta = b"\x96\x01\x0a\x03\x81\xa1x" + b"\x91" * 100_000 + b"\x90\x80\xc4\x00"
    data = struct.pack("<8sIIQ", b"RWSNAPSH", 1, len(meta), 0) + meta
    with pytest.raises(StoreDamaged, match="cannot be read"):
        SnapshotDecoder().feed(with_checksums(data))


def test_the_end_tells_whether_there_are_extra_files() -> None:
    assert not claims_no_files(DATA[-END_BYTES:])
    assert claims_no_files(container(meta_of(), CHUNKS, {})[-END_BYTES:])
    assert not claims_no_files(bytes(END_BYTES))
    assert not claims_no_files(b"")


def test_damage_on_disk_is_told_with_the_file_and_the_remedy_and_leaves_nothing(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Through the whole way of reading: at every frame, and cut anywhere."""
    monkeypatch.setattr(
        snapshot_files, "_META_READ_BYTES", 64
    )  # so that opening sees the header alone

    async def scenario() -> None:
        places = [place for begin, end in FRAMES for place in (begin, begin + 9, end - 1)]
        bad = [DATA[:place] + bytes([DATA[place] ^ 4]) + DATA[place + 1 :] for place in places]
        bad += [DATA[:length] for length in range(0, len(DATA), 37)]
        bad += [DATA + b"x", DATA + DATA]
        for data in bad:
            files = ImmediateFiles()
            snapshots = await recover(files)
            await write_file(files, f"{FOLDER}/1-10.snapshot", data)
            snapshots = await recover(files)
            with pytest.raises(StoreDamaged, match=r"/1-10\.snapshot is damaged: .*; remove this"):
                async with await snapshots.open(1, 10) as reader:
                    await contents(reader, files)
            with pytest.raises(StoreDamaged):
                async with await snapshots.open(1, 10) as reader:
                    async for _ in reader.chunks():
                        pass
            assert list(files.file_system.files) == [f"{FOLDER}/1-10.snapshot"]

    run(scenario())


def test_a_snapshot_that_shrinks_while_it_is_open_is_damaged() -> None:
    async def scenario() -> None:
        files = ImmediateFiles()
        await recover(files)
        await write_file(files, f"{FOLDER}/1-10.snapshot", DATA)
        reader = await (await recover(files)).open(1, 10)
        files.file_system.files[f"{FOLDER}/1-10.snapshot"].cached.set_length(len(DATA) - 5)
        for attempt in (reader.read_raw(0, len(DATA)), contents(reader, files)):
            with pytest.raises(StoreDamaged, match="ends at offset"):
                await attempt

    run(scenario())
