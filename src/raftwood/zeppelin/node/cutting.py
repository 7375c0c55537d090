"""Cutting a binlog's end off, wherever that falls in a run."""

from raftwood.base.errors import OutOfRange
from raftwood.disk.segment_log import Record, Run, SegmentLog, TruncateTail
from raftwood.zeppelin.node.binlog_format import decode_run, encode_run


async def cut_binlog(log: SegmentLog, group: int, *, after: int) -> None:
    """Take the records behind a sequence out of the log; durable when it returns."""
    bounds = log.bounds(group)
    if not bounds.head - 1 <= after < bounds.next_index:
        raise OutOfRange(
            f"a binlog with the records {bounds.head} to {bounds.next_index - 1} cannot be cut "
            f"behind {after}"
        )
    if after + 1 == bounds.next_index:
        return
    stored = (await log.read(group, after + 1, bytes_max=1))[0]
    records: list[Record] = [TruncateTail(group, stored.first_index)]
    if stored.first_index <= after:
        # The log cuts between runs, so what stays of this one is written again.
        run = decode_run(stored.payload)
        kept = run.records[: after + 1 - stored.first_index]
        payload = encode_run(
            epoch=run.epoch, first_sequence=stored.first_index, records=kept, hour=run.hour
        )
        records.append(Run(group, stored.term, stored.first_index, len(kept), payload))
    await log.commit(*records)
