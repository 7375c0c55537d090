"""What the real twemproxy answered, and keys to ask for."""

import hashlib
from collections.abc import Iterable
from pathlib import Path

import msgspec

from raftwood.clogs.configuration import LogServer

FILE = Path(__file__).parents[2] / "fixtures" / "ketama_vectors.json"


class MeasuredServer(msgspec.Struct, frozen=True):
    host: str
    port: int
    weight: int
    name: str
    ring_name: str
    points: int


class Vector(msgspec.Struct, frozen=True):
    key: str
    hash: int
    server: int


class Case(msgspec.Struct, frozen=True):
    name: str
    servers: list[MeasuredServer]
    vectors: list[Vector]
    digest_of_2000: str

    @property
    def log_servers(self) -> list[LogServer]:
        return [
            LogServer(host=each.host, port=each.port, weight=each.weight, name=each.name)
            for each in self.servers
        ]


class Measured(msgspec.Struct, frozen=True):
    cases: list[Case]
    equal_servers_with_156_points: list[int]


MEASURED = msgspec.json.decode(FILE.read_bytes(), type=Measured)
CASES = {case.name: case for case in MEASURED.cases}
KEYS = [f"/var/log/app{number}.log" for number in range(2000)]


def digest(placed: Iterable[int]) -> str:
    return hashlib.sha256(",".join(map(str, placed)).encode()).hexdigest()


def named(*names: str, weight: int = 1) -> list[LogServer]:
    return [
        LogServer(host="127.0.0.1", port=1 + number, name=name, weight=weight)
        for number, name in enumerate(names)
    ]


def equal(count: int) -> list[LogServer]:
    return named(*(f"server{number}" for number in range(count)))
