import copy
import pickle
from pathlib import Path
from typing import Annotated, Literal

import msgspec
import pytest
from msgspec import Meta

from raftwood.base.configuration import FILE_BYTES_MAX, Configuration, compose, load_configuration
from raftwood.base.errors import InvalidConfiguration
from raftwood.base.settings import Secret, Section, describe


class DiskSettings(Section, frozen=True):
    segment_bytes: Annotated[int, Meta(ge=1024, le=1 << 40, description="Size.")] = 64 << 20
    keep_bytes_max: Annotated[int, Meta(ge=0, description="Kept.")] = 1 << 30
    sync: Annotated[bool, Meta(description="Whether to sync.")] = True
    ratio: Annotated[float, Meta(gt=0, lt=1, description="Ratio.")] = 0.5

    def __post_init__(self) -> None:
        if self.keep_bytes_max < self.segment_bytes:
            raise ValueError("keep_bytes_max is below segment_bytes; raise it")


class NetSettings(Section, frozen=True):
    scope = "cluster"

    timeout_ms: Annotated[int, Meta(ge=1, le=60_000, description="Patience.")] = 5_000
    peers: Annotated[tuple[str, ...], Meta(description="Peers.")] = ()
    ports: Annotated[tuple[int, ...], Meta(description="Ports.")] = ()
    mode: Annotated[Literal["plain", "tls"], Meta(description="Mode.")] = "plain"
    password: Annotated[Secret, Meta(description="Password.")] = Secret()


class Sample(msgspec.Struct, frozen=True, kw_only=True):
    disk: DiskSettings
    net: NetSettings


def _flag(*flags: str) -> Configuration[Sample]:
    return compose(Sample, flags=flags)


def _message(**sources: object) -> str:
    with pytest.raises(InvalidConfiguration) as caught:
        compose(Sample, **sources)  # type: ignore[arg-type]
    return caught.value.message


def test_a_flag_beats_the_environment_beats_the_file_beats_the_default(tmp_path: Path) -> None:
    file = tmp_path / "node.toml"
    file.write_text("[disk]\nsegment_bytes = 2048\nsync = false\nratio = 0.25\n")
    configuration = load_configuration(
        Sample,
        file=str(file),
        environment={"RAFTWOOD_DISK__SEGMENT_BYTES": "4096", "RAFTWOOD_DISK__SYNC": "true"},
        assignments=["disk.segment_bytes=8192"],
    )
    disk = configuration.settings.disk
    assert (disk.segment_bytes, disk.sync, disk.ratio) == (8192, True, 0.25)
    assert disk.keep_bytes_max == 1 << 30
    assert configuration.origin("disk.segment_bytes") == "flag --set disk.segment_bytes"
    assert configuration.origin("disk.sync") == "environment RAFTWOOD_DISK__SYNC"
    assert configuration.origin("disk.ratio") == f"file {file}:disk.ratio"
    assert configuration.origin("disk.keep_bytes_max") == "default"


def test_the_environment_may_name_the_file(tmp_path: Path) -> None:
    file = tmp_path / "node.toml"
    file.write_text("[net]\nmode = 'tls'\n")
    configuration = load_configuration(Sample, environment={"RAFTWOOD_CONFIG": str(file)})
    assert configuration.settings.net.mode == "tls"


def test_the_last_flag_for_a_setting_counts() -> None:
    assert _flag("net.timeout_ms=1", "net.timeout_ms=2").settings.net.timeout_ms == 2


@pytest.mark.parametrize(
    ("text", "milliseconds"),
    [("100", 100), ("100ms", 100), ("5s", 5000), ("1.5s", 1500), ("1min", 60_000), ("2 s", 2000)],
)
def test_durations_may_carry_a_unit(text: str, milliseconds: int) -> None:
    assert _flag(f"net.timeout_ms={text}").settings.net.timeout_ms == milliseconds
    in_file = compose(Sample, data=f"[net]\ntimeout_ms = '{text}'".encode())
    assert in_file.settings.net.timeout_ms == milliseconds


@pytest.mark.parametrize(
    ("text", "size"), [("64MiB", 64 << 20), ("64MB", 64_000_000), ("1.5KiB", 1536), ("4096B", 4096)]
)
def test_sizes_may_carry_a_unit(text: str, size: int) -> None:
    assert _flag(f"disk.segment_bytes={text}").settings.disk.segment_bytes == size


def test_a_unit_before_a_bound_word_is_understood() -> None:
    assert _flag("disk.keep_bytes_max=2GiB").settings.disk.keep_bytes_max == 2 << 30


@pytest.mark.parametrize("text", ["64MIB", "5 parsecs", "-1s", "1e3", "0.3B", "", "9" * 5000])
def test_quantities_that_are_none_are_refused(text: str) -> None:
    assert "disk.segment_bytes" in _message(flags=[f"disk.segment_bytes={text}"])


def test_lists_and_booleans_are_read_from_text() -> None:
    net = _flag("net.peers=a:1, b:2", "net.ports=1,2", "disk.sync=false").settings
    assert net.net.peers == ("a:1", "b:2")
    assert net.net.ports == (1, 2)
    assert not net.disk.sync


def test_a_text_keeps_what_looks_like_another_type() -> None:
    configuration = compose(Sample, environment={"RAFTWOOD_NET__PASSWORD": "null"})
    assert configuration.settings.net.password.reveal() == "null"


def test_an_error_names_setting_value_origin_range_and_remedy() -> None:
    message = _message(environment={"RAFTWOOD_NET__TIMEOUT_MS": "90s"})
    for part in (
        "net.timeout_ms",
        "'90s'",
        "environment RAFTWOOD_NET__TIMEOUT_MS",
        "give a whole number of milliseconds",
        "from 1 to 60000",
    ):
        assert part in message


def test_all_mistakes_of_all_sources_are_told_at_once() -> None:
    message = _message(
        data=b"[disk]\nsegment_bytes = 1\n[net]\nmode = 'carrier pigeon'",
        environment={"RAFTWOOD_DISK__SYNC": "maybe"},
        flags=["disk.ratio=2"],
    )
    assert len(message.splitlines()) == 4
    assert "one of plain, tls" in message


@pytest.mark.parametrize(
    ("sources", "hint"),
    [
        ({"flags": ["disk.segment_byte=1"]}, "did you mean disk.segment_bytes?"),
        ({"environment": {"RAFTWOOD_DISK__SEGMENTBYTES": "1"}}, "did you mean disk.segment_bytes?"),
        ({"data": b"[disk]\nsegment_sizes = 1"}, "did you mean disk.segment_bytes?"),
        ({"data": b"[dsk]\nsegment_bytes = 1"}, "did you mean disk?"),
        ({"data": b"[zzz]"}, "config show"),
        ({"data": b"disk = 1"}, "[disk]"),
        ({"flags": ["disk.sync"]}, "section.key=value"),
    ],
)
def test_what_is_unknown_is_an_error_with_the_closest_known(
    sources: dict[str, object], hint: str
) -> None:
    assert hint in _message(**sources)


def test_variables_that_are_no_settings_are_left_alone() -> None:
    compose(Sample, environment={"RAFTWOOD_CONFIG": "", "RAFTWOOD_HOME": "x", "DISK__SYNC": "x"})


def test_a_broken_file_is_told_with_line_and_column(tmp_path: Path) -> None:
    file = tmp_path / "node.toml"
    for data, place in (
        (b"[disk]\nsync = = 1\n", "line 2, column 8"),
        (b"[disk]\nsync = ", "line 2, column 8"),
        (b"[disk]\n# \xff\n", "line 2, column 3"),
        (b"[disk]\n[disk]\n", "line 2, column"),
    ):
        file.write_bytes(data)
        with pytest.raises(InvalidConfiguration, match=place) as caught:
            load_configuration(Sample, file=str(file))
        assert str(file) in caught.value.message


@pytest.mark.parametrize(
    "data",
    [b"x = " + b"[" * 100_000, b"x = " + b"9" * 100_000, b"#" * (FILE_BYTES_MAX + 1)],
    ids=["deep", "long", "large"],
)
def test_a_hostile_file_is_refused(data: bytes) -> None:
    assert "configuration file" in _message(data=data)


def test_a_missing_file_is_told_by_name() -> None:
    with pytest.raises(InvalidConfiguration, match=r"nowhere\.toml.*--config"):
        load_configuration(Sample, file="nowhere.toml")


def test_a_section_checks_relations_between_its_settings() -> None:
    assert "keep_bytes_max is below segment_bytes" in _message(flags=["disk.keep_bytes_max=1"])


def test_a_line_break_in_a_name_cannot_forge_a_line() -> None:
    message = _message(data=b'[disk]\n"a\\nerror: forged" = 1', flags=["disk.a\nb=1"])
    assert len(message.splitlines()) == 2


def test_a_secret_never_shows() -> None:
    configuration = compose(Sample, environment={"RAFTWOOD_NET__PASSWORD": "hunter2"})
    password = configuration.settings.net.password
    assert password.reveal() == "hunter2"
    assert password
    assert password == Secret("hunter2")
    shown = [value for value in configuration.values if value.secret]
    assert [value.value for value in shown] == ["****"]
    for text in (repr(configuration), str(password), f"{password}", f"{password!r}"):
        assert "hunter2" not in text
    with pytest.raises(TypeError):
        pickle.dumps(password)
    with pytest.raises(TypeError):
        copy.deepcopy(password)


def test_a_secret_is_not_taken_from_a_flag_that_everybody_sees() -> None:
    message = _message(flags=["net.password=hunter2"])
    assert "RAFTWOOD_NET__PASSWORD" in message
    assert "hunter2" not in message


def test_a_secret_of_a_wrong_type_does_not_show_either() -> None:
    assert "1234" not in _message(data=b"[net]\npassword = 1234")


def test_sections_tell_whether_they_are_the_clusters_or_the_nodes() -> None:
    scopes = {value.name: value.scope for value in compose(Sample).values}
    assert scopes["net.timeout_ms"] == "cluster"
    assert scopes["disk.sync"] == "node"


def test_a_setting_without_default_or_description_is_our_bug() -> None:
    class Bare(Section, frozen=True):
        port: int = 1

    class Required(Section, frozen=True):
        port: Annotated[int, Meta(description="Port.")]

    for section in (Bare, Required):
        kind = msgspec.defstruct("Kind", [("section", section)])
        with pytest.raises(TypeError, match="every setting needs one"):
            describe(kind)


@pytest.mark.parametrize(
    ("flag", "reason"),
    [
        ("net.ports=1,two", "a list as A,B,C without brackets"),
        ('net.peers=["a","b"]', "neither brackets nor quotes"),
    ],
)
def test_a_list_that_is_refused_names_its_syntax(flag: str, reason: str) -> None:
    assert reason in _message(flags=[flag])


def test_a_list_may_have_addresses_in_brackets() -> None:
    assert _flag("net.peers=[::1]:7400,h:1").settings.net.peers == ("[::1]:7400", "h:1")
