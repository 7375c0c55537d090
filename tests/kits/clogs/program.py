"""A program that logs: numbered lines of several files, and what it was promised of them.

    python program.py PLAN --ready-file=FILE

It tells on standard output, a JSON line each, how far it has come. SIGTERM ends it in order.
"""

import logging
import signal
import sys
import time
from pathlib import Path
from typing import Any

import msgspec

from raftwood.base.logs import set_up_logs
from raftwood.base.settings import LoggingSettings
from raftwood.clogs.client import ClogsHandler, Delivery, Shipper, ShipperStatus

DIRECT = "direct.log"
"""What is given to the shipper itself, which answers deliveries."""
_TURN_S = 0.02
_REPORT_S = 0.2


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What it does."""

    life: str
    """Stands in all its lines."""
    files: list[str]
    settings: dict[str, Any]
    turn_lines: int = 4
    """Of each file, all at once."""
    text: str = ""
    """Behind each line's number."""
    is_synced: bool = True


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """How far it is; lines are counted for each file."""

    given: int = 0
    synced: int = 0
    """So many lines of each file are stored or spooled: the shipper has said so."""
    sent: int = 0
    """To `DIRECT`."""
    delivered: int = 0
    """Of these, the first ones are stored."""
    failed: int = 0
    status: ShipperStatus | None = None
    is_last: bool = False


class _Program:
    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._handler = ClogsHandler(plan.files[0], file_of=_file_of, **plan.settings)
        self._log = logging.getLogger("program")
        self._log.setLevel(logging.INFO)
        self._log.propagate = False
        self._log.addHandler(self._handler)
        self._given = self._synced = 0
        self._deliveries: list[Delivery[None]] = []
        self._delivered = 0
        self.is_over = False

    @property
    def _shipper(self) -> Shipper:
        return self._handler.shipper

    def run(self) -> None:
        report_at = 0.0
        while not self.is_over:
            self._give()
            if time.monotonic() >= report_at:
                report_at = time.monotonic() + _REPORT_S
                if self._plan.is_synced:
                    given = self._given
                    self._shipper.sync()
                    self._synced = given
                self._tell()
            time.sleep(_TURN_S)
        self._handler.close()
        self._tell(is_last=True)

    def _give(self) -> None:
        plan = self._plan
        for _ in range(plan.turn_lines):
            line = f"{plan.life} {self._given}{plan.text}"
            for file in plan.files:
                self._log.info(line, extra={"file": file})
            self._given += 1
        if plan.is_synced:
            sent = f"{plan.life} {len(self._deliveries)}"
            self._deliveries.append(self._shipper.send(DIRECT, sent))

    def _tell(self, *, is_last: bool = False) -> None:
        while self._delivered < len(self._deliveries):
            delivery = self._deliveries[self._delivered]
            if not delivery.is_done:
                break
            delivery.result()
            self._delivered += 1
        report = Report(
            given=self._given,
            synced=self._synced,
            sent=len(self._deliveries),
            delivered=self._delivered,
            failed=self._handler.failed,
            status=self._shipper.status(),
            is_last=is_last,
        )
        sys.stdout.write(msgspec.json.encode(report).decode() + "\n")
        sys.stdout.flush()


def _file_of(record: logging.LogRecord) -> str:
    return str(record.__dict__["file"])


def main(plan: str, ready: str) -> None:
    set_up_logs(LoggingSettings(format="json"), clock=None)
    program = _Program(msgspec.json.decode(Path(plan).read_bytes(), type=Plan))

    def end(*_: object) -> None:
        program.is_over = True

    signal.signal(signal.SIGTERM, end)
    Path(ready.removeprefix("--ready-file=")).write_text("ready")
    program.run()


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2])
