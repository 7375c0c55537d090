"""The lines of a batch, read back from what is sent."""

from raftwood.clogs.frames import LineBatch
from raftwood.loghub.batches import decompress
from raftwood.loghub.log_groups import decode_log_group


def lines_of(batch: LineBatch) -> list[bytes]:
    raw = decompress(batch.body, batch.codec, raw_bytes=batch.raw_bytes)
    return [log.Contents[0].Value for log in decode_log_group(raw).Logs]
