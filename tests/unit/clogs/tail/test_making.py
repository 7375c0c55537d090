"""A batch that is made of a file's bytes: what its records have beside their lines."""

import pytest

from raftwood.base.compression import Codec
from raftwood.clogs.masking import Masking, MaskRule
from raftwood.clogs.tail.batch_maker import BatchMaker
from raftwood.clogs.tail.checkpoints import BatchIntent
from raftwood.clogs.tail.settings import TailSettings
from raftwood.loghub.batches import decompress
from raftwood.loghub.log_groups import decode_log_group


@pytest.mark.parametrize(("topic", "stored"), [("", "shop/a.log"), ("orders", "orders")])
def test_records_have_the_name_of_their_file_as_topic_unless_another_is_set(
    topic: str, stored: str
) -> None:
    settings = TailSettings(paths=("/logs/*.log",), topic=topic, source="host-1")
    block = b"one\ntwo\n"
    intent = BatchIntent(b"p" * 16, 1, 0, len(block), 0, 0, Codec.LZ4, 0)
    made = BatchMaker(settings, None).make(
        block, intent, name="shop/a.log", time_ns=1, is_resumed=False
    )
    assert made is not None
    batch = made.batch
    group = decode_log_group(decompress(batch.body, batch.codec, raw_bytes=batch.raw_bytes))
    assert (group.Topic, group.Source, len(group.Logs)) == (stored.encode(), b"host-1", 2)


def test_a_last_line_that_is_masked_by_nothing_is_still_a_line() -> None:
    masking = Masking([MaskRule("all", "secret.*", "")])
    settings = TailSettings(paths=("/logs/*.log",))
    for block, begins_mid_line in ((b"secret 1", False), (b"\nsecret 1", True)):
        intent = BatchIntent(
            b"p" * 16, 1, 0, len(block), 0, 0, Codec.NONE, 0, begins_mid_line=begins_mid_line
        )
        made = BatchMaker(settings, masking).make(
            block, intent, name="a.log", time_ns=1, is_resumed=False
        )
        assert made is not None
        assert made.batch.count == 1
