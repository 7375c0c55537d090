"""A small file system of its own for a store's process, and filling it up."""

from pathlib import Path

from tests.kits.components import NEW_MOUNTS
from tests.kits.disk.store_process import StoreProcess


def in_small_disk(mounted: Path, size_kib: int) -> tuple[str, ...]:
    """A wrapper of a store's command: the folder, which is there, is on a disk of this size."""
    mount = f'mount -t tmpfs -o size={size_kib}k none "{mounted}" && exec "$0" "$@"'
    return (*NEW_MOUNTS, "sh", "-c", mount)


def seen_inside(process: StoreProcess) -> Path:
    """The folder as the store sees it: the mount is its own."""
    return Path(f"/proc/{process.pid}/root{process.folder}")


def fill(folder: Path, left_bytes: int = 0) -> Path:
    """Take all the room that there is but for some; to the last page where none is left."""
    ballast = folder / "ballast"
    with ballast.open("wb", buffering=0) as file:
        for size in (1 << 16, 1 << 12):
            try:
                while True:
                    file.write(bytes(size))
            except OSError:
                continue
        if left_bytes:
            file.truncate(max(0, file.tell() - left_bytes))
    return ballast
