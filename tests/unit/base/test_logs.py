import asyncio
import io
import json
from collections.abc import Iterator

import pytest
import structlog

from raftwood.base.logs import TEXT_CHARACTERS_MAX, bind_context, get_logger, set_up_logs
from raftwood.base.settings import LoggingSettings, Secret


class FixedClock:
    def wall_ns(self) -> int:
        return 1_700_000_000_123_456_789

    def monotonic_ns(self) -> int:
        return 0


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def _restore() -> Iterator[None]:
    yield
    structlog.contextvars.clear_contextvars()
    set_up_logs(LoggingSettings(level="warning", format="text"), clock=None)  # as at import


def _json_log(level: str = "info") -> io.StringIO:
    stream = io.StringIO()
    settings = LoggingSettings(level=level, format="json")  # type: ignore[arg-type]
    set_up_logs(settings, clock=FixedClock(), stream=stream)
    return stream


def test_json_line_carries_event_level_logger_and_the_time_of_the_given_clock() -> None:
    stream = _json_log()
    get_logger("raft").bind(store=3).info("elected", term=7)
    assert json.loads(stream.getvalue()) == {
        "part": "raft",
        "store": 3,
        "term": 7,
        "event": "elected",
        "level": "info",
        "time": "2023-11-14T22:13:20.123456Z",
    }


def test_without_a_clock_lines_carry_no_time() -> None:
    stream = io.StringIO()
    set_up_logs(LoggingSettings(format="json"), clock=None, stream=stream)
    get_logger("raft").info("elected")
    assert "time" not in json.loads(stream.getvalue())


def test_lines_below_the_level_are_not_written() -> None:
    stream = _json_log("warning")
    get_logger("raft").info("quiet")
    get_logger("raft").warning("loud")
    assert [json.loads(line)["event"] for line in stream.getvalue().splitlines()] == ["loud"]


def test_a_pipe_gets_json_and_a_terminal_gets_coloured_text(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    pipe, terminal = io.StringIO(), Terminal()
    for stream in (pipe, terminal):
        set_up_logs(LoggingSettings(), clock=FixedClock(), stream=stream)
        get_logger("raft").info("elected", term=7)
    assert json.loads(pipe.getvalue())["term"] == 7
    assert "\x1b[" in terminal.getvalue()
    assert "elected" in terminal.getvalue()


def test_no_color_is_honoured(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_COLOR", "1")
    terminal = Terminal()
    set_up_logs(LoggingSettings(), clock=FixedClock(), stream=terminal)
    get_logger("raft").info("elected", term=7)
    assert "\x1b" not in terminal.getvalue()
    assert "term=7" in terminal.getvalue()


@pytest.mark.parametrize("style", ["text", "json"])
@pytest.mark.parametrize(
    "hostile", ["a\nforged line", "a\rb", "\x1b[2J", "a\u2028b", "\x9b31m", "\u202egnp", "\ud800"]
)
def test_control_characters_cannot_forge_a_line_or_move_the_cursor(
    style: str, hostile: str
) -> None:
    stream = io.StringIO()
    settings = LoggingSettings(format=style)  # type: ignore[arg-type]
    set_up_logs(settings, clock=FixedClock(), stream=stream)
    get_logger("net").info(hostile, peer=hostile, nested={hostile: [hostile]}, raw=hostile)
    written = stream.getvalue()
    assert written.count("\n") == 1
    assert written.endswith("\n")
    assert not any(character in written for character in "\r\x1b\u2028\x9b\u202e\ud800")


@pytest.mark.parametrize(
    "key", ["password", "db_passwd", "client_secret", "AuthToken", "api_key", "Authorization"]
)
def test_values_of_keys_that_tell_of_secrets_are_masked(key: str) -> None:
    stream = _json_log()
    get_logger("net").info("login", **{key: "hunter2"}, deeper={key: "hunter2"})
    assert "hunter2" not in stream.getvalue()
    assert json.loads(stream.getvalue())[key] == "****"


def test_a_secret_is_masked_under_any_key() -> None:
    stream = _json_log()
    get_logger("net").info("login", anything=Secret("hunter2"), more=[Secret("hunter2")])
    assert "hunter2" not in stream.getvalue()


def test_a_long_text_is_cut_and_bytes_are_shown_in_part() -> None:
    stream = _json_log()
    get_logger("net").info("frame", text="x" * 100_000, data=b"\x00" * 100_000)
    assert len(stream.getvalue()) < TEXT_CHARACTERS_MAX + 2_000


@pytest.mark.parametrize("style", ["text", "json"])
def test_an_exception_is_written_without_local_variables(style: str) -> None:
    stream = io.StringIO()
    settings = LoggingSettings(format=style)  # type: ignore[arg-type]
    set_up_logs(settings, clock=None, stream=stream)
    try:
        local_value = "hunter2"[::-1]
        raise ValueError("first\nforged" + local_value[:0])
    except ValueError:
        get_logger("net").exception("failed")
    assert "ValueError" in stream.getvalue()
    assert "2retnuh" not in stream.getvalue()
    assert "\nforged" not in stream.getvalue()


def test_context_is_bound_per_task() -> None:
    stream = _json_log()

    async def node(store: int) -> None:
        bind_context(store=store)
        await asyncio.sleep(0)
        get_logger("raft").info("started")

    async def run() -> None:
        async with asyncio.TaskGroup() as group:
            for store in (1, 2):
                group.create_task(node(store))

    asyncio.run(run())
    assert [json.loads(line)["store"] for line in stream.getvalue().splitlines()] == [1, 2]
