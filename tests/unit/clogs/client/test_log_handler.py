"""Python's logging through clogs."""

import asyncio
import logging
import logging.config
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from raftwood.base.errors import InvalidConfiguration, InvalidInput
from raftwood.clogs.client import ClogsHandler, MaskRule, Shipper
from tests.kits.clogs.ring import KEY, SECRET, settings_of
from tests.kits.clogs.ring_thread import RingThread
from tests.kits.clogs.stored import records_of

FILE = "shop/orders.log"


@pytest.fixture
def logger() -> Iterator[logging.Logger]:
    found = logging.getLogger("tests.clogs.handler")
    found.setLevel(logging.DEBUG)
    found.propagate = False
    yield found
    for handler in list(found.handlers):
        found.removeHandler(handler)
        handler.close()


def test_records_are_stored_with_their_level_and_logger(logger: logging.Logger) -> None:
    with RingThread(1) as ring:
        handler = ClogsHandler(
            FILE,
            servers=list(ring.servers),
            access_key=KEY,
            access_secret=SECRET.decode(),
            linger_ms=5,
            exit_ms="2s",
            tags={"service": "shop"},
        )
        handler.setFormatter(logging.Formatter("%(levelname)s: %(message)s"))
        logger.addHandler(handler)
        logger.info("order %d", 7)
        try:
            raise ValueError("broken")
        except ValueError:
            logger.exception("no order")
        handler.shipper.flush(10_000)
        first, second = records_of(ring.storage, FILE)
        assert first == {"message": "INFO: order 7", "level": "INFO", "logger": logger.name}
        assert second["level"] == "ERROR"
        assert second["message"].startswith("ERROR: no order\nTraceback")
        assert second["message"].endswith("ValueError: broken")
        handler.close()
        logger.info("after the end")
        assert handler.failed == 1


def test_a_configuration_of_loggings_own_makes_a_handler() -> None:
    with RingThread(1) as ring:
        logging.config.dictConfig(
            {
                "version": 1,
                "disable_existing_loggers": False,
                "formatters": {"short": {"format": "%(name)s %(message)s"}},
                "handlers": {
                    "ship": {
                        "class": "raftwood.clogs.client.ClogsHandler",
                        "file": FILE,
                        "level": "INFO",
                        "formatter": "short",
                        "servers": list(ring.servers),
                        "access_key": KEY,
                        "access_secret": SECRET.decode(),
                        "memory_bytes_max": "8MiB",
                        "masks": ["cards"],
                        "mask_rules": [{"name": "pin", "pattern": "pin=[0-9]+"}],
                    }
                },
                "loggers": {"tests.clogs.configured": {"handlers": ["ship"], "level": "DEBUG"}},
            }
        )
        configured = logging.getLogger("tests.clogs.configured")
        configured.propagate = False
        (handler,) = configured.handlers
        assert isinstance(handler, ClogsHandler)
        assert handler.shipper.settings.memory_bytes_max == 8 << 20
        configured.debug("below the level")
        configured.info("card 4111111111111111 pin=1234 end")
        handler.shipper.flush(10_000)
        configured.removeHandler(handler)
        handler.close()
        (line,) = ring.lines(FILE)
        assert line.startswith(b"tests.clogs.configured card ")
        assert b"4111111111111111" not in line
        assert b"1234" not in line
        assert line.endswith(b" *** end")


def test_a_shipper_that_is_given_stays_its_owners(logger: logging.Logger) -> None:
    with RingThread(1) as ring, Shipper(ring.settings()) as shipper:
        one = ClogsHandler("one.log", shipper)
        by_level = ClogsHandler("other.log", shipper, file_of=lambda each: f"{each.levelname}.log")
        for handler in (one, by_level):
            logger.addHandler(handler)
        logger.warning("hello")
        one.close()
        logger.removeHandler(one)
        logger.warning("again")
        shipper.flush(10_000)
        assert ring.lines("one.log") == [b"hello"]
        assert ring.lines("WARNING.log") == [b"hello", b"again"]
        with pytest.raises(InvalidInput, match="its own settings"):
            ClogsHandler("one.log", shipper, exit_ms=1)


def test_what_cannot_be_used_is_told_when_the_handler_is_made() -> None:
    wrongs: list[tuple[dict[str, Any], str]] = [
        ({"memory": 1}, "no setting 'memory'"),
        ({"memory_bytes_max": 1}, "memory_bytes_max"),
        ({"when_full": "spool"}, "without a folder"),
        ({"servers": "logs:1"}, "servers"),
        ({"when_full": "explode"}, "when_full"),
    ]
    for wrong, reason in wrongs:
        with pytest.raises(InvalidConfiguration, match=reason):
            ClogsHandler(FILE, **wrong)
    with pytest.raises(InvalidConfiguration):
        ClogsHandler("")
    assert ClogsHandler(FILE, settings_of(linger_ms=7), exit_ms=3).shipper.settings.linger_ms == 7


class _Unprintable:
    def __str__(self) -> str:
        raise RuntimeError("not to be printed")


def test_a_record_that_cannot_be_formatted_is_counted_and_ends_nothing(
    capsys: pytest.CaptureFixture[str],
) -> None:
    with RingThread(1) as ring:
        handler = ClogsHandler(FILE, ring.settings())
        given: list[tuple[str, tuple[object, ...]]] = [
            ("%s", (_Unprintable(),)),
            ("%d", ("no number",)),
            ("good", ()),
        ]
        for text, values in given:
            handler.handle(logging.LogRecord("root", 20, "file", 1, text, values, None))
        handler.shipper.flush(10_000)
        handler.close()
        assert ring.lines(FILE) == [b"good"]
        assert handler.failed == 2
        assert "not to be printed" in capsys.readouterr().err


class _Bytes(logging.Formatter):
    def format(self, record: logging.LogRecord) -> str:
        return record.getMessage().encode()  # type: ignore[return-value]


def test_records_that_are_none_of_loggings_own_making_hold_nobody_up() -> None:
    with RingThread(1) as ring:
        handler = ClogsHandler(FILE, ring.settings())
        strange: list[dict[str, object]] = [
            {"created": "now"},
            {"created": float("nan")},
            {"levelname": None},
            {"name": ["unhashable"]},
        ]
        for values in strange:
            handler.handle(logging.makeLogRecord({"msg": "strange", **values}))
        handler.setFormatter(_Bytes())
        handler.handle(logging.makeLogRecord({"msg": "bytes"}))
        handler.shipper.flush(10_000)
        handler.handle(logging.makeLogRecord({"msg": "later"}))
        handler.shipper.flush(10_000)
        handler.close()
        assert ring.lines(FILE) == [b"strange"] * len(strange) + [b"bytes", b"later"]


def test_what_logging_says_while_the_shipper_starts_is_shipped_and_what_it_says_itself_is_not(
    logger: logging.Logger,
) -> None:
    # A new event loop tells of its selector, in the thread that logs, while that starts the loop.
    loops = logging.getLogger("asyncio")
    level, propagates = loops.level, loops.propagate
    with RingThread(1) as ring:
        handler = ClogsHandler(FILE, ring.settings())
        loops.setLevel(logging.DEBUG)
        loops.propagate = False
        loops.addHandler(handler)
        logger.addHandler(handler)
        try:
            logger.info("first")
            handler.shipper.flush(10_000)
            thread = handler.shipper._thread
            assert thread is not None

            async def complain() -> None:
                await asyncio.sleep(0)
                loops.error("from the shipper's own thread")

            thread.call(complain())
            handler.shipper.flush(10_000)
        finally:
            loops.removeHandler(handler)
            loops.setLevel(level)
            loops.propagate = propagates
        lines = ring.lines(FILE)
        assert lines[0] == b"first"
        assert all(line.startswith(b"Using selector") for line in lines[1:])
        assert len(lines) == 2


def test_records_of_many_threads_are_in_order_per_thread(logger: logging.Logger) -> None:
    def work(number: int) -> None:
        for turn in range(300):
            logger.info("%d %d", number, turn)

    with RingThread() as ring:
        handler = ClogsHandler(FILE, ring.settings())
        logger.addHandler(handler)
        threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        handler.shipper.flush(10_000)
        stored = [tuple(map(int, line.split())) for line in ring.lines(FILE)]
        for number in range(4):
            assert [turn for each, turn in stored if each == number] == list(range(300))


def test_masks_of_ones_own_are_applied_before_anything_is_spooled(
    logger: logging.Logger, tmp_path: Path
) -> None:
    folder = tmp_path / "spool"
    handler = ClogsHandler(
        FILE,
        settings_of(servers=("127.0.0.1:1",), exit_ms=0),
        spool="always",
        compression="none",
        spool_folder=str(folder),
        mask_rules=[MaskRule(name="name", pattern="name=[a-z]+")],
    )
    logger.addHandler(handler)
    logger.info("visible name=hidden")
    handler.shipper.sync(10_000)
    handler.close()
    content = b"".join(each.read_bytes() for each in folder.rglob("*.segment"))
    assert b"visible" in content
    assert b"hidden" not in content
