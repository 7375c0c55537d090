"""`ClogsHandler`: Python's logging into a file of a ring; by default it never blocks.

    handler = ClogsHandler(
        "shop/orders.log", servers=["logs-1:7290"], access_key="…", access_secret="…"
    )
    logging.getLogger().addHandler(handler)

Keywords are settings of `clogs_client`; `logging.config.dictConfig` takes the same, beside
`class: raftwood.ClogsHandler` and `file`.

A call formats the record and puts it into the shipper's inbox: nothing is encoded, compressed or
sent in the thread that logs. A record's level and logger are fields beside its text.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from threading import get_ident
from typing import Any

import msgspec

from raftwood.base.errors import InvalidInput, RaftwoodError
from raftwood.clogs.client.settings import ClogsClientSettings, client_settings
from raftwood.clogs.client.sync_shipper import Shipper
from raftwood.clogs.configuration import checked_file_name
from raftwood.clogs.masking import MaskRule


class ClogsHandler(logging.Handler):
    """A handler that is made with settings has a shipper of its own, and closes it; the owner of a
    passed shipper closes that one. `file_of` chooses another file than `file` for a record.
    """

    def __init__(
        self,
        file: str,
        shipper: Shipper | ClogsClientSettings | None = None,
        *,
        level: int | str = logging.NOTSET,
        file_of: Callable[[logging.LogRecord], str] | None = None,
        tags: Mapping[str, str] | None = None,
        mask_rules: Sequence[MaskRule | Mapping[str, str]] = (),
        **settings: Any,
    ) -> None:
        """`InvalidConfiguration` for unusable settings; an unreachable server is no error."""
        super().__init__(level)
        self._file = checked_file_name(file)
        self._file_of = file_of
        self._owns = not isinstance(shipper, Shipper)
        if isinstance(shipper, Shipper):
            if settings or tags or mask_rules:
                raise InvalidInput("a shipper that is given has its own settings: give them there")
            self.shipper = shipper
        else:
            given = {} if shipper is None else msgspec.structs.asdict(shipper)
            self.shipper = Shipper(
                client_settings(given | settings),
                tags=tuple((tags or {}).items()),
                mask_rules=[_mask_rule(rule) for rule in mask_rules],
            )
            # `logging` closes its handlers at the very end, after other code has logged there.
            self.shipper.left_to(self)
        self.failed = 0
        """Records that could not be formatted, for which there was no room, or after the end."""

    def handle(self, record: logging.LogRecord) -> bool:
        """Like the base class, but without its lock: an inbox needs none."""
        passed = self.filter(record)
        if passed:
            self.emit(record if passed is True else passed)
        return bool(passed)

    def emit(self, record: logging.LogRecord) -> None:
        shipper = self.shipper
        if get_ident() == shipper.thread_ident:
            return  # the shipper's own log lines would come back to it without end
        try:
            shipper.take_record(
                self._file if self._file_of is None else checked_file_name(self._file_of(record)),
                self.format(record),
                record.created,
                record.levelname,
                record.name,
            )
        except RaftwoodError:
            self._count_failed()
        except Exception:  # as all handlers do: a record must not end the program that logs it
            self._count_failed()
            self.handleError(record)

    def _count_failed(self) -> None:
        # Not the handler's own lock, which `logging` holds while it waits for the end.
        with self.shipper.lock:
            self.failed += 1

    def flush(self) -> None:
        """Does nothing: `logging.shutdown` calls it, and `close` ships what is left. To wait until
        all is stored, flush the shipper.
        """

    def close(self) -> None:
        if self._owns:
            self.shipper.close()
        super().close()


def _mask_rule(rule: MaskRule | Mapping[str, str]) -> MaskRule:
    return rule if isinstance(rule, MaskRule) else msgspec.convert(dict(rule), MaskRule)
