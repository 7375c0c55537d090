"""`redis-cli` and `redis-benchmark` as Debian has them."""

import re
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass

from tests.kits.install import debian

SECONDS_MAX = 60


@dataclass(frozen=True)
class Tools:
    """Of one user, at one node."""

    port: int
    user: str
    password: str

    def command(self, program: str, *words: str) -> tuple[str, ...]:
        quiet = ("--no-auth-warning",) if program == "redis-cli" else ()
        login = ("--user", self.user, "-a", self.password, *quiet)
        where = ("-h", "127.0.0.1", "-p", str(self.port), *login)
        return (debian.install("redis-tools").program(program), *where, *words)

    @property
    def environment(self) -> Mapping[str, str]:
        """That its programs need."""
        return debian.install("redis-tools").environment

    def start(self, program: str, *words: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            self.command(program, *words),
            env=self.environment,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def _run(self, program: str, *words: str, given: str = "") -> str:
        with self.start(program, *words) as started:
            try:
                output, errors = started.communicate(given, timeout=SECONDS_MAX)
            finally:
                started.kill()
        assert started.returncode == 0, output + errors
        assert not errors.strip(), errors
        return output

    def cli(self, *words: str, given: str = "") -> str:
        """What `redis-cli` prints, without colours."""
        return re.sub(r"\x1b\[[0-9;]*m", "", self._run("redis-cli", *words, given=given))

    def cluster(self, word: str, *words: str) -> str:
        """`redis-cli --cluster`."""
        return self.cli("--cluster", word, f"127.0.0.1:{self.port}", *words)

    def benchmark(self, *words: str) -> dict[str, float]:
        """Requests per second, by test."""
        lines = self._run("redis-benchmark", "--csv", *words).splitlines()
        rows = [line.split('","') for line in lines if line.startswith('"')]
        return {row[0].strip('"'): float(row[1]) for row in rows[1:]}
