"""Lines that become a batch."""

import pytest

from raftwood.base.compression import Codec
from raftwood.clogs.client.batch_builder import (
    LINE_OVERHEAD_BYTES,
    BatchEncoding,
    LineDelivery,
    PendingLines,
)
from raftwood.loghub.batches import decompress
from raftwood.loghub.log_groups import decode_log_group

TIME_NS = 1_800_000_000_123_456_789


def encoding_of(**changes: object) -> BatchEncoding:
    values: dict[str, object] = {"life": bytes(16), "codec": Codec.LZ4, "source": "host"}
    return BatchEncoding(**(values | changes))  # type: ignore[arg-type]


def records_of(encoding: BatchEncoding, pending: PendingLines) -> list[tuple[int, dict[str, str]]]:
    batch = encoding.batch(pending, bytes(16), 7)
    assert (batch.name, batch.sequence, batch.count) == (pending.name, 7, len(pending.lines))
    raw = decompress(batch.body, batch.codec, raw_bytes=batch.raw_bytes)
    group = decode_log_group(raw)
    assert (bytes(group.Topic), bytes(group.Source)) == (pending.name.encode(), b"host")
    return [
        (
            log.Time * 10**9 + (log.Time_ns or 0),
            {bytes(each.Key).decode(): bytes(each.Value).decode() for each in log.Contents},
        )
        for log in group.Logs
    ]


@pytest.mark.parametrize("codec", [Codec.NONE, Codec.LZ4, Codec.ZSTD])
def test_lines_and_records_keep_their_order_times_and_fields(codec: Codec) -> None:
    pending = PendingLines("a.log")
    delivery = LineDelivery(2)
    assert pending.add([b"one", b"two"], TIME_NS, delivery) == 6 + 2 * LINE_OVERHEAD_BYTES
    pending.add_records([b"three"], [TIME_NS + 1], [{"level": "INFO"}])
    pending.add([b"four"], 5, None)
    assert records_of(encoding_of(codec=codec), pending) == [
        (TIME_NS, {"message": "one"}),
        (TIME_NS, {"message": "two"}),
        (TIME_NS + 1, {"message": "three", "level": "INFO"}),
        (5, {"message": "four"}),
    ]
    assert pending.deliveries == [(delivery, 2)]


def test_a_batch_is_masked_as_a_whole_before_it_is_anything_else() -> None:
    seen: list[list[bytes]] = []

    def mask(lines: list[bytes]) -> list[bytes]:
        seen.append(lines)
        return [line.replace(b"secret", b"***") for line in lines]

    pending = PendingLines("a.log")
    pending.add([b"a secret", b"no"], TIME_NS, None)
    pending.add_records([b"another secret"], [TIME_NS], [{"level": "a secret \ud800"}])
    found = records_of(encoding_of(mask=mask), pending)
    assert [fields["message"] for _, fields in found] == ["a ***", "no", "another ***"]
    assert found[-1][1]["level"] == "a *** \\ud800"
    assert [len(each) for each in seen] == [3, 1]


def test_no_two_lives_files_or_generations_share_a_producer() -> None:
    producers = {
        encoding_of(life=life).producer(name, generation)
        for life in (bytes(16), b"x" * 16)
        for name in ("a.log", "b.log")
        for generation in (0, 1)
    }
    assert len(producers) == 8


def test_what_was_made_into_a_batch_is_not_held_any_longer() -> None:
    pending = PendingLines("a.log")
    pending.add([b"one"], TIME_NS, LineDelivery(1))
    pending.clear()
    assert (pending.lines, pending.times, pending.extras, pending.deliveries) == ([], [], [], [])
