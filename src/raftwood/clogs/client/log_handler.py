"""`ClogsHandler`: Python's logging into a file of a ring, without ever blocking by default.

    handler = ClogsHandler("shop/orders.log", settings)
    logging.getLogger().addHandler(handler)

A call formats the record and puts it into the shipper's inbox: nothing is encoded, compressed or
sent in the thread that logs. A record's level and logger are fields beside its text.
"""

import logging
import threading
from collections.abc import Callable

from raftwood.base.errors import RaftwoodError
from raftwood.clogs.client.settings import ClogsClientSettings
from raftwood.clogs.client.sync_shipper import THREAD_NAME, Shipper
from raftwood.clogs.model import checked_file_name


class ClogsHandler(logging.Handler):
    """With settings it has a shipper of its own, and closes it; one that is given stays its
    owner's. `file_of` names another file for a record than `name`.
    """

    def __init__(
        self,
        name: str,
        shipper: Shipper | ClogsClientSettings,
        *,
        level: int = logging.NOTSET,
        file_of: Callable[[logging.LogRecord], str] | None = None,
    ) -> None:
        super().__init__(level)
        self._file = checked_file_name(name)
        self._file_of = file_of
        self._owns = isinstance(shipper, ClogsClientSettings)
        self.shipper = Shipper(shipper) if isinstance(shipper, ClogsClientSettings) else shipper
        self._take = self.shipper.take_record
        self.failed = 0
        """Records that could not be formatted, or came after the end."""

    def emit(self, record: logging.LogRecord) -> None:
        if threading.current_thread().name == THREAD_NAME:
            return  # what the shipper says of itself would come back to it without end
        try:
            name = self._file if self._file_of is None else checked_file_name(self._file_of(record))
            self._take(
                name,
                self.format(record),
                int(record.created * 1_000_000) * 1000,
                {"level": record.levelname, "logger": record.name},
            )
        except RaftwoodError:
            self.failed += 1
        except (TypeError, ValueError, KeyError):
            self.failed += 1
            self.handleError(record)

    def flush(self) -> None:
        """Nothing: `logging.shutdown` calls it, and `close` ships what is left. To wait until all
        is stored, flush the shipper.
        """

    def close(self) -> None:
        if self._owns:
            self.shipper.close()
        super().close()
