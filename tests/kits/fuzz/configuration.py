"""A configuration file of any bytes is read or refused as InvalidConfiguration, nothing else."""

import contextlib
import zlib
from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from raftwood.base.configuration import compose
from raftwood.base.errors import InvalidConfiguration
from raftwood.base.settings import Secret, Section
from raftwood.server.settings import Settings


class EveryKind(Section, frozen=True):
    """A setting of each type there can be."""

    whole: Annotated[int, Meta(ge=0, le=100, description="A number.")] = 1
    part: Annotated[float, Meta(gt=0, description="A number.")] = 0.5
    size_bytes: Annotated[int, Meta(ge=0, description="A size.")] = 1
    wait_ms: Annotated[int, Meta(ge=0, description="A time.")] = 1
    flag: Annotated[bool, Meta(description="A flag.")] = True
    name: Annotated[str, Meta(pattern=r"\A[a-z]*\Z", description="A text.")] = "a"
    choice: Annotated[Literal["a", "b"], Meta(description="A choice.")] = "a"
    names: Annotated[tuple[str, ...], Meta(description="Texts.")] = ()
    secret: Annotated[Secret, Meta(description="A secret.")] = Secret()


class Kinds(msgspec.Struct, frozen=True, kw_only=True):
    """The program's settings stand beside the section of all types."""

    kinds: EveryKind


def target(data: bytes) -> None:
    """Raises only what is a bug; the program's own settings, of which there are many, get some of
    the inputs: they are read by the same rules.
    """
    kind = Settings if zlib.crc32(data) % 64 == 1 else Kinds
    with contextlib.suppress(InvalidConfiguration):
        compose(kind, data=data, file="fuzz.toml")


def seeds() -> list[bytes]:
    """Files that reach every kind of setting."""
    return [
        b"",
        b'[cluster]\nname = "raftwood"\n[node]\nstore_id = 7\ndata_folder = "x"\n',
        b'[logs]\nlevel = "debug"\nformat = "json"\n',
        b'[kinds]\nwhole = 3\npart = 1.5\nsize_bytes = "64MiB"\nwait_ms = "1.5s"\nflag = false\n',
        b'[kinds]\nname = "abc"\nchoice = "b"\nnames = ["x", "y"]\nsecret = "s"\n',
        b"[kinds]\nwhole = nan\npart = -inf\nsize_bytes = 0x7fffffffffffffffff\nflag = 1\n",
        b"kinds.wait_ms = 1979-05-27T07:32:00Z\nkinds.names = [[1], {a = 1}]\n[[node]]\n",
        b'"k\\u0000" = """\n"""\n[kinds.whole]\nx = 1\n',
    ]
