"""One replica as a real process: `python -m tests.kits.testing.toy NUMBER PORT FOLDER LOOP`."""

import asyncio
import sys

import uvloop

from raftwood.disk.real_environment import real_environment
from tests.kits.testing.toy.replica import ReplicaAddress, serve_replica


def main() -> None:
    number, port, folder, loop = sys.argv[1:]
    address = ReplicaAddress(f"r{number}", int(number), "127.0.0.1", int(port))
    run = uvloop.run if loop == "uvloop" else asyncio.run
    with real_environment() as environment:
        run(serve_replica(environment, address, folder))


if __name__ == "__main__":
    main()
