"""Runs raft scripts in the format of etcd's raft.

python -m tests.kits.raft.scripts [--semantic] PATH…

`--semantic` leaves log lines (INFO, DEBUG, WARN …) out of the comparison, and nothing else.
"""

import argparse
import sys
from pathlib import Path

from tests.kits.raft.scripts.running import run_file, script_files


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description="run raft scripts")
    parser.add_argument("--semantic", action="store_true", help="leave log lines out")
    parser.add_argument("paths", nargs="+", type=Path, metavar="PATH", help="files or folders")
    options = parser.parse_args(arguments)
    passed = failed = 0
    for path in script_files(options.paths):
        differences = run_file(path, semantic=options.semantic)
        if differences:
            failed += 1
            print(f"FAILED {path}\n{differences}")
        else:
            passed += 1
            print(f"passed {path}")
    print(f"{passed} passed, {failed} failed")
    return 1 if failed or not passed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
