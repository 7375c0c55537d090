"""Web-server logs that look like real ones: visitors in sessions, busy minutes, and a bad one.

    for line in web_logs(200_000, seed=1): ...

Lines are in the combined log format with the request's time in milliseconds at their end. The same
seed makes the same lines. Of several servers each has visitors of its own; minutes are busy or bad
for all of them. `WebFiles` has how many lines each server's files hold, and a digest of them.
"""

import random
from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from hashlib import blake2b
from itertools import accumulate
from typing import Any, Final

import msgspec

_PAGES: Final = (
    ("/", 20, 3_000),
    ("/products", 14, 9_000),
    ("/products/{item}", 30, 12_000),
    ("/search?q={word}", 12, 7_000),
    ("/cart", 8, 4_000),
    ("/api/v1/items/{item}", 16, 900),
    ("/api/v1/login", 4, 300),
    ("/api/v1/orders", 5, 600),
    ("/static/app.js", 10, 140_000),
    ("/static/style.css", 9, 30_000),
    ("/images/{item}.webp", 22, 60_000),
    ("/robots.txt", 1, 120),
)
_WORDS: Final = ("lamp", "chair", "blue+table", "oak", "raft", "rope", "paddle", "canvas")
_AGENTS: Final = (
    ("Mozilla/5.0 (Windows NT 10.0; Win64; x64) AppleWebKit/537.36 Chrome/140.0 Safari/537.36", 40),
    (
        "Mozilla/5.0 (Macintosh; Intel Mac OS X 14_6) AppleWebKit/605.1 Version/18.0 Safari/605",
        18,
    ),
    ("Mozilla/5.0 (X11; Linux x86_64; rv:143.0) Gecko/20100101 Firefox/143.0", 12),
    (
        "Mozilla/5.0 (iPhone; CPU iPhone OS 18_5 like Mac OS X) AppleWebKit/605.1 Mobile/15E148",
        25,
    ),
    ("Googlebot/2.1 (+http://www.google.com/bot.html)", 3),
    ("curl/8.9.1", 2),
)
_POSTED: Final = ("/api/v1/login", "/api/v1/orders")
_PATHS: Final = [page for page, _, _ in _PAGES]
_PATH_WEIGHTS: Final = list(accumulate(weight for _, weight, _ in _PAGES))
_SIZES: Final = {page: size for page, _, size in _PAGES}
_AGENT_NAMES: Final = [name for name, _ in _AGENTS]
_AGENT_WEIGHTS: Final = list(accumulate(weight for _, weight in _AGENTS))
LOG_FILES: Final = ("access.log", "api.log", "static.log")
START_S: Final = 1_790_000_000
"""When the first line is from, where nothing else is said."""


class _Visitor(msgspec.Struct):
    address: str
    agent: str
    referrer: str
    left: int
    """Requests until it goes."""


def web_logs(
    count: int,
    *,
    seed: int,
    server: int = 0,
    start_s: int = START_S,
    lines_per_minute: int = 12_000,
) -> Iterator[str]:
    """So many lines of one server in order of their times, the first one at `start_s`."""
    rng = random.Random(f"{seed}/{server}")
    visitors = [_visitor(rng) for _ in range(200)]
    time_s = float(start_s)
    bad_from = start_s + 60 * (2 + random.Random(seed).randrange(3))
    minute, busy = -1, 1.0
    for _ in range(count):
        if int(time_s - start_s) // 60 != minute:
            # Each minute is as busy as it is, between half and one and a half times the average.
            minute = int(time_s - start_s) // 60
            busy = 0.5 + random.Random(seed * 1_000_003 + minute).random()
        time_s += rng.expovariate(lines_per_minute / 60 * busy)
        place = rng.randrange(len(visitors))
        visitor = visitors[place]
        yield _line(rng, visitor, time_s, is_bad=bad_from <= time_s < bad_from + 60)
        visitor.left -= 1
        if visitor.left <= 0:
            visitors[place] = _visitor(rng)


def log_file(line: str) -> str:
    """Which of `LOG_FILES` a server writes the line to, by what was asked for."""
    path = line.split('"', 2)[1].split(" ", 2)[1]
    if path.startswith("/api/"):
        return "api.log"
    return "static.log" if path.startswith(("/static/", "/images/")) else "access.log"


def _visitor(rng: random.Random) -> _Visitor:
    return _Visitor(
        address=f"{rng.choice((10, 81, 93, 172, 203))}.{rng.randrange(256)}.{rng.randrange(256)}."
        f"{rng.randrange(1, 255)}",
        agent=rng.choices(_AGENT_NAMES, cum_weights=_AGENT_WEIGHTS)[0],
        referrer=rng.choice(("-", "-", "https://search.example/", "https://news.example/top")),
        left=1 + int(rng.expovariate(1 / 25)),
    )


def _line(rng: random.Random, visitor: _Visitor, time_s: float, *, is_bad: bool) -> str:
    page = rng.choices(_PATHS, cum_weights=_PATH_WEIGHTS)[0]
    path = page.replace("{item}", str(int(rng.paretovariate(0.9)) % 5000)).replace(
        "{word}", rng.choice(_WORDS)
    )
    method = "POST" if page in _POSTED else "GET"
    status = _status(rng, page, is_bad=is_bad)
    size = 0 if status == 304 else int(_SIZES[page] * rng.uniform(0.6, 1.5))
    latency_ms = rng.lognormvariate(2.5, 0.7) * (8 if status >= 500 else 1)
    moment = datetime.fromtimestamp(time_s, UTC)
    return (
        f"{visitor.address} - - [{moment:%d/%b/%Y:%H:%M:%S}.{int(time_s % 1 * 1000):03d} +0000] "
        f'"{method} {path} HTTP/1.1" {status} {size} "{visitor.referrer}" "{visitor.agent}" '
        f"{latency_ms:.1f}"
    )


def _status(rng: random.Random, page: str, *, is_bad: bool) -> int:
    chance = rng.random()
    if is_bad and page.startswith("/api/") and chance < 0.35:
        return 503
    if chance < 0.004:
        return 500
    if chance < 0.025:
        return 404
    if page == "/api/v1/login" and chance < 0.12:
        return 401
    if page.startswith(("/static", "/images")) and chance < 0.45:
        return 304
    return 200


def server_name(server: int) -> str:
    return f"web-{server}"


def file_name(server: int, line: str) -> str:
    """As the file is shipped."""
    return f"{server_name(server)}/{log_file(line)}"


def file_names(server: int) -> list[str]:
    """All of a server's."""
    return [f"{server_name(server)}/{name}" for name in LOG_FILES]


def share(lines: int, server: int, servers: int) -> int:
    """How many of so many lines are the server's, of those from 1 on."""
    return lines // servers + (server <= lines % servers)


class FileLines:
    """Of one file: a line that is missing, there twice or out of order makes another digest."""

    def __init__(self) -> None:
        self.count = 0
        self._digest = blake2b(digest_size=16)

    def add(self, line: str) -> None:
        self.count += 1
        self._digest.update(line.encode())
        self._digest.update(b"\n")

    def __eq__(self, other: object) -> bool:
        return isinstance(other, FileLines) and self._figures() == other._figures()

    __hash__ = None  # type: ignore[assignment]

    def _figures(self) -> tuple[int, bytes]:
        return self.count, self._digest.digest()


class WebFiles:
    """All files, by their names."""

    def __init__(self) -> None:
        self._files: defaultdict[str, FileLines] = defaultdict(FileLines)

    def add(self, name: str, line: str) -> None:
        self._files[name].add(line)

    def __len__(self) -> int:
        return len(self._files)

    def __iter__(self) -> Iterator[str]:
        return iter(sorted(self._files))

    def same_as(self, other: "WebFiles") -> list[str]:
        """The names of the files that hold the same lines in the same order in both."""
        return [name for name in self if other._files.get(name) == self._files[name]]


def stored_files(
    read: Callable[..., Any], project: str, logstore: str, access: Mapping[str, str]
) -> WebFiles:
    """As a stream has them, by the topics of its records; each file is in one shard of it."""
    table = read(project, logstore, columns=["topic", "message string"], **access)
    found = WebFiles()
    # It is read shard by shard, each in its order.
    for batch in table.to_batches():
        for name, line in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            found.add(name, line)
    return found
