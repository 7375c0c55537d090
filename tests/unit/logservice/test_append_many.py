"""`append_many` of more records than may be under way at once."""

import pytest

from raftwood.logservice.client import log_client
from raftwood.logservice.errors import RecordTooLarge
from tests.kits.logservice.log_cluster import SERVICE, LogCluster, run_log_cluster


def test_many_records_go_out_by_portions_and_in_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_client, "MANY_RECORDS", 10)
    monkeypatch.setattr(log_client, "MANY_BYTES", 100)

    async def scenario(cluster: LogCluster) -> None:
        cluster.start(1, 2, 3)
        await cluster.wait_for_leader(1)
        async with await cluster.client() as client:
            record = client.get_log_record(3)
            record.payload[:] = b"one"
            payloads = [b"%d" % number for number in range(35)] + [b"x" * 60] * 5
            lsns = await client.append_many([record, *payloads])
            assert lsns == sorted({*lsns})
            records, end = await client.read(lsns[0])
            assert [bytes(each.payload) for each in records] == [b"one", *payloads]
            assert await client.append_many([]) == []
            # What comes after a portion that failed is not sent.
            too_large = bytes(SERVICE.record_bytes_max + 1)
            with pytest.raises(RecordTooLarge):
                await client.append_many([*payloads[:12], too_large, *payloads])
            records, _ = await client.read(end)
            assert [bytes(each.payload) for each in records] == payloads[:12]

    run_log_cluster(scenario)
