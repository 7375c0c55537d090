"""What a tailer's configuration may say, and what it says to those who got it wrong."""

import pytest

from raftwood.base.compression import Codec
from raftwood.base.errors import InvalidConfiguration
from raftwood.clogs.client.settings import Compression
from raftwood.clogs.masking import MaskRule
from raftwood.clogs.tail.settings import Multiline, TailSettings

GOLDEN_DIGEST = 4616576150522070834


def test_a_file_of_settings_fills_them() -> None:
    settings = TailSettings.parse(
        {
            "paths": ["/var/log/*.log"],
            "name": "{folder}/{base}",
            "multiline": {"continue": "^\\s"},
            "tags": {"host": "a"},
            "compression": "zstd",
        },
        origin="ship.toml",
    )
    assert settings.name_of("/var/log/app/x.log") == "app/x.log"
    assert settings.compression.codec is Codec.ZSTD
    assert settings.multiline is not None
    assert settings.multiline.continues == "^\\s"


@pytest.mark.parametrize(
    ("data", "told"),
    [
        ({"paths": []}, "name at least one"),
        ({"paths": ["a"], "name": "{user}"}, "{user}"),
        ({"paths": ["a"], "multiline": {}}, "exactly one"),
        ({"paths": ["a"], "multiline": {"start": "a", "continue": "b"}}, "exactly one"),
        ({"paths": ["a"], "multiline": {"start": "("}}, "no regular expression"),
        ({"paths": ["a"], "line_bytes_max": 8192, "batch_bytes_max": 4096}, "batch_bytes_max"),
        ({"paths": ["a"], "grace_ms": 70_000}, "grace_ms_max"),
        ({"paths": ["a"], "colour": "red"}, "colour"),
        ({"paths": ["a"], "poll_ms": 0}, "poll_ms"),
    ],
)
def test_a_mistake_is_told_with_its_place(data: dict[str, object], told: str) -> None:
    with pytest.raises(InvalidConfiguration, match=r"^ship\.toml: ") as failure:
        TailSettings.parse(data, origin="ship.toml")
    assert told in failure.value.message


@pytest.mark.parametrize(
    ("rule", "name"),
    [
        ("{path}", "/var/log/{base}.log"),
        ("{base}", "{base}.log"),
        ("{stem}", "{base}"),
        ("web.{folder}", "web.log"),
        ("{{tag}}{base}", None),
        ("all", "all"),
    ],
)
def test_a_file_is_shipped_under_the_name_that_the_rule_makes(rule: str, name: str | None) -> None:
    if name is None:
        with pytest.raises(ValueError, match="tag"):
            TailSettings(paths=("a",), name=rule)
    else:
        assert TailSettings(paths=("a",), name=rule).name_of("/var/log/{base}.log") == name


def test_a_path_that_is_no_text_has_no_name() -> None:
    settings = TailSettings(paths=("a",))
    for path in ("/a\udcff.log", "/a\nb.log", "/" + "x" * 2000):
        with pytest.raises(InvalidConfiguration, match="cannot be a file's name"):
            settings.name_of(path)


def test_rules_for_lines_are_named_as_in_release_0_1_0() -> None:
    settings = TailSettings(
        paths=("/l/*.log",),
        masks=("cards",),
        mask_rules=(MaskRule("numbers", "[0-9]+", "#"),),
        multiline=Multiline(start="^x"),
    )
    assert settings.line_rules.digest == GOLDEN_DIGEST
    plain = TailSettings(paths=("/l/*.log",))
    assert plain.line_rules.digest != GOLDEN_DIGEST
    assert plain.under(settings.line_rules) == settings


def test_rules_with_longer_lines_than_batches_may_have_now_are_still_rules() -> None:
    before = TailSettings(paths=("/l/*.log",), line_bytes_max=256 << 10).line_rules
    now = TailSettings(paths=("/l/*.log",), line_bytes_max=4096, batch_bytes_max=4096)
    assert now.under(before).line_rules == before


def test_every_compression_has_a_codec() -> None:
    for compression in Compression:
        codec = TailSettings(paths=("a",), compression=compression).compression.codec
        assert codec.name.lower() == compression.value
