"""A consumer with SLS's Python SDK as it is: prints what it reads, until it is told to end.

Reached through `http_proxy`: `worker.py consume '{"id": …}'`.
"""

import json
import signal
import sys
from types import FrameType
from typing import Any

from aliyun.log.consumer import ConsumerProcessorBase, ConsumerWorker, CursorPosition, LogHubConfig


class Printer(ConsumerProcessorBase):  # type: ignore[misc]
    """Says what came, and then how far it is."""

    def process(self, log_groups: Any, check_point_tracker: Any) -> None:
        values = [
            content.Value
            for group in log_groups.LogGroups
            for log in group.Logs
            for content in log.Contents
        ]
        # In one piece, for shards are processed by several threads.
        sys.stdout.write(json.dumps({"shard": self.shard_id, "values": values}) + "\n")
        sys.stdout.flush()
        check_point_tracker.save_check_point(True)


def main() -> None:
    given = json.loads(sys.argv[2])
    worker = ConsumerWorker(
        Printer,
        LogHubConfig(
            "http://sls.test",
            given["id"],
            given["secret"],
            given["project"],
            given["logstore"],
            given["group"],
            given["consumer"],
            cursor_position=CursorPosition.BEGIN_CURSOR,
            heartbeat_interval=given["heartbeat_s"],
            data_fetch_interval=0.1,
            in_order=given["order"],
            worker_pool_size=4,
        ),
    )

    def stop(_: int, __: FrameType | None) -> None:
        worker.shutdown()

    signal.signal(signal.SIGTERM, stop)
    worker.start()
    while worker.is_alive():
        worker.join(0.2)


if __name__ == "__main__":
    main()
