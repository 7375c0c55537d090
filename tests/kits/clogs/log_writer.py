"""Files that a program writes all the time and rotates, for who follows them."""

import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Self

FILES = ("a.log", "b.log", "c.log")
_ROTATE_S = 1.2


class LogWriter:
    """Appends numbered lines to files all the time, and renames the files away now and then."""

    def __init__(self, folder: Path, is_known: Callable[[Path], bool]) -> None:
        """`is_known`: whether the file that has this path now is followed by somebody. One that is
        renamed before anybody saw it is nobody's to find."""
        folder.mkdir()
        self._folder = folder
        self._is_known = is_known
        self._is_over = False
        self._lock = threading.Lock()
        self.may_rotate = True
        self.written = dict.fromkeys(FILES, 0)
        self.rotations = 0
        self.made_at_ns = dict.fromkeys(FILES, 0)
        """When the files were made that have the names now."""
        self._thread = threading.Thread(target=self._write_on, name="writer of logs")

    def path(self, name: str) -> Path:
        return self._folder / name

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over = True
        self._thread.join()

    def rotate(self, name: str) -> None:
        with self._lock:
            self.rotations += 1
            self.path(name).rename(self.path(f"{name}.{self.rotations}"))

    def _write_on(self) -> None:
        rotated_at, turn = time.monotonic(), 0
        while not self._is_over:
            for name in FILES:
                self._append(name)
            if self.may_rotate and time.monotonic() - rotated_at >= _ROTATE_S:
                name = FILES[turn % len(FILES)]
                if self._is_known(self.path(name)):
                    self.rotate(name)
                    rotated_at, turn = time.monotonic(), turn + 1
            time.sleep(0.025)

    def _append(self, name: str) -> None:
        with self._lock:
            first = self.written[name]
            path = self.path(name)
            if not path.exists():
                self.made_at_ns[name] = time.time_ns()
            with path.open("a") as file:
                file.writelines(f"{name} {number}\n" for number in range(first, first + 4))
            self.written[name] = first + 4
