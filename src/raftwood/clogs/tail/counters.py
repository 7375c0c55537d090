"""What a tailer counts, and what it tells of itself."""

import msgspec


class TailCounters(msgspec.Struct):
    """In this life of the tailer; they only grow."""

    lines: int = 0
    """Stored."""
    bytes: int = 0
    """Of files, stored."""
    batches: int = 0
    resumed_batches: int = 0
    """Of an earlier life, sent again under their old names."""
    unknown_batches: int = 0
    """Of an earlier life, which can't be made again: they may be stored or not."""
    unknown_bytes: int = 0
    cuts: int = 0
    """Files that were cut, and begun anew."""
    cut_bytes: int = 0
    """Known to have been in files when they were cut or went away, and never read."""
    missed_files: int = 0
    """Known to have been made and deleted before they could be opened: nobody knows their sizes."""
    cut_lines: int = 0
    """Cuts that were made in lines that are too long."""
    retries: int = 0
    """Of deliveries that failed."""
    troubles: int = 0
    """Failures to open or read files, or to write the state."""
    refused_files: int = 0


class FileStatus(msgspec.Struct, frozen=True, kw_only=True):
    """One file."""

    name: str
    path: str
    size: int
    offset: int
    """Stored up to here."""
    behind_bytes: int
    lines: int
    bytes: int
    problem: str = ""


class TailStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The tailer as it is."""

    files: int
    open_files: int
    missing_files: int
    """Of an earlier life, not found again so far."""
    behind_bytes: int
    scanned_because: str = ""
    """Why changes are looked for every `scan_ms`, where folders cannot be watched."""
    counters: TailCounters
    file_list: list[FileStatus]
    """Those that are furthest behind first; not all of them where there are many."""
