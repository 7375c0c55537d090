"""The settings of a tailer: a struct that a TOML file fills and that checks itself."""

import re
from typing import Annotated, Final, Literal, Self

import msgspec
import xxhash
from msgspec import Meta

from raftwood.base.errors import InvalidConfiguration
from raftwood.clogs.client.settings import Compression
from raftwood.clogs.configuration import checked_file_name
from raftwood.clogs.lines import DEFAULT_FIELD
from raftwood.clogs.masking import MaskRule

_NAME_PART: Final = re.compile(r"\{(\w*)\}")
_NAME_PARTS: Final = ("path", "base", "stem", "folder")
COMPRESSED: Final = ("*.gz", "*.bz2", "*.xz", "*.zst", "*.lz4", "*.zip", "*.Z")
"""Copies of rotated files: their contents were read before they were made."""

_Pattern = Annotated[str, Meta(max_length=1024)]
_Milliseconds = Annotated[int, Meta(ge=0, le=86_400_000)]


class Multiline(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Records of several lines: give one of the two patterns."""

    start: _Pattern = ""
    """A line that matches begins a record; all others belong to the one before."""
    continues: _Pattern = msgspec.field(default="", name="continue")
    """A line that matches belongs to the record before; all others begin one."""
    lines_max: Annotated[int, Meta(ge=2, le=10_000)] = 500
    """A record with more lines is cut there, and counted."""
    wait_ms: _Milliseconds = 2_000
    """The last record counts as complete once the file has not grown for so long."""

    def __post_init__(self) -> None:
        if bool(self.start) == bool(self.continues):
            raise ValueError("multiline takes either start or continue; give exactly one of them")
        try:
            re.compile((self.start or self.continues).encode(), re.MULTILINE)
        except re.error as error:
            raise ValueError(f"a multiline pattern is no regular expression: {error}") from error


class LineRules(msgspec.Struct, frozen=True, array_like=True):
    """What determines the lines of a block: the same block and rules give the same lines."""

    masks: tuple[str, ...]
    mask_rules: tuple[MaskRule, ...]
    multiline: Multiline | None
    line_bytes_max: int
    field: str

    @property
    def digest(self) -> int:
        """Returns the name of the rules in a batch's intent."""
        return xxhash.xxh3_64_intdigest(msgspec.msgpack.encode(self))


class TailSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One tailer's configuration."""

    paths: tuple[Annotated[str, Meta(min_length=1, max_length=4096)], ...]
    """Files and globs (`*`, `?`, `[…]`, `**` for folders below)."""
    exclude: tuple[str, ...] = COMPRESSED
    """Globs of base names or, with a slash in them, of paths that are left alone."""
    name: Annotated[str, Meta(min_length=1, max_length=512)] = "{path}"
    """The name under which a file is shipped: text with {path}, {base}, {stem} (the base without
    its last suffix) and {folder} (the base name of the folder that the file is in)."""
    start: Literal["beginning", "end"] = "beginning"
    """Where to begin files that exist at the first run; later ones begin at their beginning."""
    multiline: Multiline | None = None
    masks: tuple[str, ...] = ()
    """Names of built-in rules for sensitive values in lines."""
    mask_rules: tuple[MaskRule, ...] = ()
    """Further rules, which see the result of the built-in ones."""
    topic: Annotated[str, Meta(max_length=1024)] = ""
    """The topic of the records; by default the name under which the file is shipped."""
    source: Annotated[str, Meta(max_length=253)] = ""
    """The source of the lines; by default the host's name."""
    tags: dict[str, str] = {}
    field: Annotated[str, Meta(min_length=1, max_length=128)] = DEFAULT_FIELD
    """The field of a record that holds its line."""
    compression: Compression = Compression.LZ4
    batch_bytes_max: Annotated[int, Meta(ge=4 << 10, le=2 << 20)] = 1 << 20
    """Limit of what is read, made into a batch and sent at once."""
    batch_lines_max: Annotated[int, Meta(ge=1, le=100_000)] = 16_384
    line_bytes_max: Annotated[int, Meta(ge=64, le=1 << 20)] = 256 << 10
    """A longer line, or record of several lines, is cut into pieces, and counted."""
    partial_ms: _Milliseconds = 5_000
    """A last line without a newline is shipped as it is once its file has not grown for so long."""
    poll_ms: Annotated[int, Meta(ge=1, le=60_000)] = 200
    """The interval between looks at growing files. A file that was cut before is looked at ten
    times as often, because what is cut before it is read is lost.
    """
    scan_ms: Annotated[int, Meta(ge=1, le=3_600_000)] = 1_000
    """The interval between scans for new and renamed files, if folders cannot be watched."""
    rescan_ms: Annotated[int, Meta(ge=1, le=3_600_000)] = 30_000
    """The same if all folders are watched: for events that a watch may have missed."""
    is_watching: bool = msgspec.field(default=True, name="watch")
    """Notice changes by inotify; off: only look for them every `poll_ms` and `scan_ms`."""
    grace_ms: _Milliseconds = 2_000
    """A file that lost its name is read until it has not grown for so long; the file that has its
    name now waits for that.
    """
    grace_ms_max: _Milliseconds = 60_000
    """A file that still grows so long after it lost its name is read beside its successor."""
    forget_ms: Annotated[int, Meta(ge=0, le=30 * 86_400_000)] = 3_600_000
    """A file that cannot be found for so long is forgotten."""
    retry_ms: Annotated[int, Meta(ge=1, le=600_000)] = 1_000
    """The pause after a failure (no right to read, a full disk for the state, a batch that was
    refused); it doubles each time, up to a minute.
    """
    close_ms: _Milliseconds = 5_000
    """How long the end waits for batches under way."""
    files_max: Annotated[int, Meta(ge=1, le=1_000_000)] = 20_000
    open_files_max: Annotated[int, Meta(ge=1, le=100_000)] = 512
    """Above it the files that were active longest ago are closed, and opened again for reading."""
    batches_max: Annotated[int, Meta(ge=1, le=10_000)] = 64
    """Limit of batches of all files that are made and not stored yet: it bounds memory, and how
    many names are delivered at once.
    """

    def __post_init__(self) -> None:
        if not self.paths:
            raise ValueError("paths is empty; name at least one file or glob")
        for part in _NAME_PART.findall(self.name):
            if part not in _NAME_PARTS:
                raise ValueError(
                    f"name has {{{part}}}, which is none of {', '.join(_NAME_PARTS)}; use those"
                )
        if self.line_bytes_max > self.batch_bytes_max:
            raise ValueError("line_bytes_max is above batch_bytes_max; lower it")
        if self.grace_ms > self.grace_ms_max:
            raise ValueError("grace_ms is above grace_ms_max; lower it")

    @property
    def line_rules(self) -> LineRules:
        return LineRules(
            self.masks, self.mask_rules, self.multiline, self.line_bytes_max, self.field
        )

    def under(self, rules: LineRules) -> Self:
        """Returns the same settings with other rules for lines."""
        # A batch that is made again has its bytes already, so the bound of batches only has to let
        # its lines pass.
        return msgspec.structs.replace(
            self,
            batch_bytes_max=max(self.batch_bytes_max, rules.line_bytes_max),
            **msgspec.structs.asdict(rules),
        )

    def name_of(self, path: str) -> str:
        """Returns the name that a path is shipped under; `InvalidConfiguration` if invalid."""
        folder, _, base = path.rpartition("/")
        parts = {
            "path": path,
            "base": base,
            "stem": base.rpartition(".")[0] or base,
            "folder": folder.rpartition("/")[2],
        }
        # In one step: a path may contain braces, which are not placeholders.
        return checked_file_name(_NAME_PART.sub(lambda part: parts[part[1]], self.name))

    @classmethod
    def parse(cls, data: dict[str, object], *, origin: str) -> Self:
        """Checks a file's plain data; `InvalidConfiguration` says what is wrong, and where."""
        try:
            return msgspec.convert(data, cls)
        except msgspec.ValidationError as error:
            raise InvalidConfiguration(f"{origin}: {error}; correct it") from error
