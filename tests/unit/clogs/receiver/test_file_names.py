"""A file's name as a path: never outside its folder, never the same for two names."""

import random
from urllib.parse import unquote

import pytest

from raftwood.clogs.file_sink import PART_BYTES_MAX, safe_path


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("app.log", "app.log"),
        ("web/access-1_2.log", "web/access-1_2.log"),
        ("/var/log/app.log", "%2Fvar/log/app.log"),
        ("../../etc/passwd", "%2E./%2E./etc/passwd"),
        ("..", "%2E."),
        (".", "%2E"),
        ("a/./b", "a/%2E/b"),
        (".raftwood/LOCK", "%2Eraftwood/LOCK"),
        ("a//b", "a%2F%2Fb"),
        ("a/", "a%2F"),
        ("/", "%2F"),
        ("a%2Fb", "a%252Fb"),
        ("{tag} é", "%7Btag%7D%20%C3%A9"),
        ("a\\..\\b", "a%5C..%5Cb"),
    ],
)
def test_a_name_becomes_a_path(name: str, path: str) -> None:
    assert safe_path(name) == path


def test_any_name_stays_below_the_folder_and_can_be_read_back() -> None:
    rng = random.Random(7)
    for _ in range(3000):
        name = "".join(rng.choices("./a%~é\\", k=rng.randrange(1, 12)))
        path = safe_path(name)
        assert unquote(path) == name
        for part in path.split("/"):
            assert part
            assert not part.startswith(".")
            assert "\0" not in part


def test_a_part_that_no_file_system_takes_is_cut_and_stays_apart_from_others() -> None:
    names = ["x" * 300, "x" * 301, "é" * 200, "é" * 201, "d/" + "x" * 300]
    paths = [safe_path(name) for name in names]
    assert len({*paths}) == len(names)
    for path in paths:
        assert max(map(len, path.split("/"))) == PART_BYTES_MAX
    assert safe_path("x" * 255) == "x" * 255
