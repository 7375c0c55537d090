"""`raftwood clogs ring`: where files go, told without any server."""

import json
from pathlib import Path
from typing import Any

import pytest
from tests.kits.clogs.ketama_vectors import CASES, KEYS, Case, digest

from raftwood.cli.command_line import EXIT_INVALID, run


class Files:
    """What the command is given."""

    def __init__(self, folder: Path, servers: Any, keys: list[str]) -> None:
        self._folder = folder
        self.servers = self.write("servers.json", json.dumps(servers))
        self.keys = self.write("keys.txt", "".join(f"{key}\n" for key in keys))

    def write(self, name: str, text: str | bytes) -> str:
        file = self._folder / name
        file.write_bytes(text if isinstance(text, bytes) else text.encode())
        return str(file)


SERVERS = [
    {"host": "127.0.0.1", "port": 7290 + number, "name": f"log-{number}"} for number in range(3)
]


@pytest.fixture
def files(tmp_path: Path) -> Files:
    return Files(tmp_path, SERVERS, KEYS)


def _placed(
    capsys: pytest.CaptureFixture[str], servers: str, keys: str, *options: str
) -> dict[str, str]:
    given = ["clogs", "ring", "--servers", servers, "--keys", keys, "--format", "json"]
    assert run([*given, *options]) == 0
    answer: dict[str, str] = json.loads(capsys.readouterr().out)
    return answer


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_keys_are_told_with_the_servers_that_twemproxy_has_for_them(
    case: Case, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    servers = [
        {"host": each.host, "port": each.port, "weight": each.weight, "name": each.name or None}
        for each in case.servers
    ]
    files = Files(tmp_path, servers, KEYS)
    placed = _placed(capsys, files.servers, files.keys)
    assert list(placed) == KEYS
    numbers = {each.ring_name: number for number, each in enumerate(case.servers)}
    assert digest(numbers[name] for name in placed.values()) == case.digest_of_2000


def test_an_isolated_server_takes_nothing_and_others_keep_what_they_have(
    files: Files, capsys: pytest.CaptureFixture[str]
) -> None:
    before = _placed(capsys, files.servers, files.keys)
    after = _placed(capsys, files.servers, files.keys, "--isolated", "log-1")
    assert set(after.values()) == {"log-0", "log-2"}
    assert {key for key in KEYS if before[key] != after[key]} == {
        key for key in KEYS if before[key] == "log-1"
    }
    names = ("log-0", "log-1", "log-2")
    none = [word for name in names for word in ("--isolated", name)]
    assert _placed(capsys, files.servers, files.keys, *none) == before
    assert run(["clogs", "ring", "--servers", files.servers, *none]) == 0
    assert "all servers are isolated: the whole ring is used" in capsys.readouterr().out


def test_people_are_told_how_much_each_server_takes(
    files: Files, capsys: pytest.CaptureFixture[str]
) -> None:
    placed = _placed(capsys, files.servers, files.keys)
    assert run(["clogs", "ring", "--servers", files.servers, "--keys", files.keys]) == 0
    head, *rows = (line.split() for line in capsys.readouterr().out.splitlines())
    assert head == ["server", "address", "weight", "points", "keys", "share"]
    assert [row[:4] for row in rows] == [
        [f"log-{number}", f"127.0.0.1:{7290 + number}", "1", "160"] for number in range(3)
    ]
    for row in rows:
        count = list(placed.values()).count(row[0])
        assert row[4:] == [str(count), f"{count / len(KEYS):.1%}"]


def test_what_is_told_of_servers_can_be_given_again(
    files: Files, capsys: pytest.CaptureFixture[str]
) -> None:
    placed = _placed(capsys, files.servers, files.keys)
    assert run(["clogs", "ring", "--servers", files.servers, "--format", "json"]) == 0
    told = capsys.readouterr().out
    assert [each["points"] for each in json.loads(told)] == [160] * 3
    again = files.write("told.json", told)
    assert _placed(capsys, again, files.keys) == placed


def test_a_whole_configuration_has_pins_and_tags(
    files: Files, capsys: pytest.CaptureFixture[str]
) -> None:
    keys = files.write("some.txt", "{a}1\r\n{a}2\r\npinned\r\n\r\n")
    plain = _placed(capsys, files.servers, keys)
    assert list(plain) == ["{a}1", "{a}2", "pinned", ""]
    assert plain["{a}1"] == plain["{a}2"]
    other = next(name for name in ("log-0", "log-1") if name != plain["pinned"])
    whole = {"servers": SERVERS, "pins": {"pinned": other}}
    file = files.write("whole.json", json.dumps(whole))
    assert _placed(capsys, file, keys) == plain | {"pinned": other}
    toml = f'pins = {{ pinned = "{other}" }}\n' + "".join(
        f'[[servers]]\nhost = "127.0.0.1"\nport = {each["port"]}\nname = "{each["name"]}"\n'
        for each in SERVERS
    )
    assert _placed(capsys, files.write("whole.toml", toml), keys) == plain | {"pinned": other}
    many = files.write("many.txt", "\n".join(f"{{a}}{number}" for number in range(50)))
    assert len(set(_placed(capsys, file, many).values())) == 1
    assert len(set(_placed(capsys, file, many, "--hash-tag", "").values())) == 3


@pytest.mark.parametrize(
    ("servers", "said"),
    [
        ("nonsense", "has no servers that can be read: JSON is malformed"),
        ("[]", "a ring needs a server"),
        ('[{"host": "a"}]', "missing required field `port`"),
        ('[{"host": "a", "port": 0}]', ">= 1"),
        ('[{"host": "a", "port": 1, "weight": 0}]', ">= 1"),
        ('[{"host": "a", "port": 1, "wieght": 2}]', "unknown field `wieght`"),
        ('[{"host": "a", "port": 1}, {"host": "a", "port": 1}]', "two servers are called 'a:1'"),
        (b'[{"host": "\xff", "port": 1}]', "has no servers that can be read"),
        ('{"servers": 5}', "configuration cannot be read: Expected `array`, got `int`"),
    ],
)
def test_bad_servers_are_told_in_one_line(
    servers: str | bytes, said: str, files: Files, capsys: pytest.CaptureFixture[str]
) -> None:
    file = files.write("bad.json", servers)
    assert run(["clogs", "ring", "--servers", file, "--keys", files.keys]) == EXIT_INVALID
    errors = capsys.readouterr().err
    assert said in errors
    assert errors.startswith("error: ")
    assert errors.count("\n") == 1


def test_bad_options_are_told_in_one_line(files: Files, capsys: pytest.CaptureFixture[str]) -> None:
    bad = files.write("bad.txt", b"good\n\xff\n")
    for options, said in (
        (["--keys", "missing.txt"], "missing.txt cannot be read: No such file"),
        (["--keys", bad], "has a line that is no UTF-8"),
        (["--isolated", "log-7"], "--isolated 'log-7': the ring has no such server"),
        (["--hash-tag", "abc"], "--hash-tag 'abc': give two characters"),
    ):
        assert run(["clogs", "ring", "--servers", files.servers, *options]) == EXIT_INVALID
        errors = capsys.readouterr().err
        assert said in errors
        assert errors.count("\n") == 1
    assert run(["clogs", "ring", "--servers", "missing.json"]) == EXIT_INVALID
    assert "missing.json cannot be read: No such file" in capsys.readouterr().err
