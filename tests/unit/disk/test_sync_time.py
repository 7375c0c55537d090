"""What is known of a disk's speed, from how long its syncs take."""

from raftwood.disk.segment_log import SyncTime


def test_a_stall_of_long_ago_does_not_come_back_with_the_next_sync() -> None:
    sync_time = SyncTime()
    sync_time.began(0.0)
    sync_time.ended(4.0)
    assert sync_time.estimate_ms(4.0) == 4_000
    sync_time.began(104.0)
    sync_time.ended(104.002)
    assert sync_time.estimate_ms(104.002) in range(5)
