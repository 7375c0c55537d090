"""What a demo cannot play is refused before anything starts."""

import pytest

from raftwood.cli.command_line import run as raftwood


@pytest.mark.parametrize(
    "arguments",
    [
        ("logservice", "--shards", "0"),
        ("logservice", "--records", "1"),
        ("logservice", "--seconds", "0"),
        ("loghub", "--shards", "0"),
        ("loghub", "--records", "1"),
        ("loghub", "--producers", "0"),
    ],
    ids=" ".join,
)
def test_what_cannot_be_played_is_refused(
    arguments: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert raftwood(["demo", *arguments]) == 2
    assert "1 to 64 shards" in capsys.readouterr().err
