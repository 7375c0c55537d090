"""`raftwood dlog`, on ledgers in memory."""

import asyncio

import pytest
from tests.kits.dlog.logs import Kit, run_logs

from raftwood.base.errors import Overloaded, TooLarge
from raftwood.base.position import Position
from raftwood.cli.command_line import run as raftwood
from raftwood.cli.dlog import _Appender, _logs_at, position_text
from raftwood.dlog.errors import Fenced


def test_an_append_that_is_fenced_midway_says_how_much_is_stored() -> None:
    async def scenario(kit: Kit) -> None:
        dlogs = kit.dlogs()
        await dlogs.create("a")
        appender = _Appender(await dlogs.open_writer("a"), 60_000)
        await appender.append([b"1", b"2", b"3"])
        stored = position_text(appender.positions[-1])
        other = await kit.dlogs().open_writer("a")
        with pytest.raises(Fenced, match=f"3 messages are stored .* up to position {stored}:"):
            await appender.append([b"4", b"5"])
        await other.close()

    run_logs(scenario)


def test_an_append_that_is_fenced_within_a_batch_counts_what_was_acked() -> None:
    async def scenario(kit: Kit) -> None:
        dlogs = kit.dlogs()
        await dlogs.create("a")
        writer = await dlogs.open_writer("a")
        appender = _Appender(writer, 60_000)
        submitted = 0
        submit = writer.submit

        def some(*arguments: bytes) -> "asyncio.Future[Position]":
            nonlocal submitted
            submitted += 1
            if submitted < 3:
                return submit(*arguments)
            refused = asyncio.get_running_loop().create_future()
            refused.set_exception(Fenced("another has taken over"))
            return refused

        writer.submit = some  # type: ignore[method-assign,assignment]
        with pytest.raises(Fenced, match="2 messages are stored for certain"):
            await appender.append([b"1", b"2", b"3", b"4"])
        await writer.close()

    run_logs(scenario)


def test_an_append_that_is_refused_at_once_counts_what_was_acked() -> None:
    async def scenario(kit: Kit) -> None:
        dlogs = kit.dlogs()
        await dlogs.create("a")
        writer = await dlogs.open_writer("a")
        appender = _Appender(writer, 60_000)
        submitted = 0
        submit = writer.submit

        def some(*arguments: bytes) -> "asyncio.Future[Position]":
            nonlocal submitted
            submitted += 1
            if submitted == 4:
                raise Overloaded("wait for acks, then append")
            return submit(*arguments)

        await appender.append([b"1"])
        writer.submit = some  # type: ignore[method-assign,assignment]
        with pytest.raises(Overloaded, match="then append: 4 messages are stored for certain"):
            await appender.append([b"2", b"3", b"4", b"5", b"6"])
        assert submitted == 4
        with pytest.raises(TooLarge, match="4 messages are stored for certain, up to position"):
            await appender.append([bytes(64 << 20)])
        await writer.close()

    run_logs(scenario)


@pytest.mark.parametrize(
    ("bookkeeper", "logs"),
    [
        ("h:1", "h:1"),
        ("h:1,i:2/ledgers", "h:1,i:2"),
        ("h:1/bk2/ledgers", "h:1/bk2/ledgers-logs"),
        ("h:1/ledgers2", "h:1/ledgers2-logs"),
    ],
)
def test_each_chroot_of_ledgers_has_its_own_logs(bookkeeper: str, logs: str) -> None:
    assert _logs_at(bookkeeper) == logs


def test_a_place_for_records_goes_with_bookkeeper_alone(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert raftwood(["dlog", "list", "--records=h:1"]) == 2
    assert "--records goes with --bookkeeper" in capsys.readouterr().err
