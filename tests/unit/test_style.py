"""The house rules that a program can check; each exception is named, with its reason."""

import ast
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

import raftwood

SOURCE = Path(raftwood.__file__).parent
REPOSITORY = SOURCE.parent.parent

DEMOS = SOURCE.parent / "raftwood_demos"
FILES = {str(file.relative_to(SOURCE)): file for file in sorted(SOURCE.rglob("*.py"))} | {
    str(file.relative_to(SOURCE.parent)): file for file in sorted(DEMOS.rglob("*.py"))
}

_RUNS_OTHERS = "runs the code of others and reports whatever it raises"
SUPERVISORS = {
    "clogs/client/log_handler.py": "a user's formatter fails its own record, not the program",
    "disk/real_environment.py": "a bug fails its own submission, not the thread that all wait for",
    "dlog/bookie/auditor.py": "a bug fails the repair of one bookie, and is told, not the auditor",
    "loghub/consumer/shard_consumer.py": "a user's bug fails its own shard, not the worker",
    "loghub/consumer/processor.py": "a user's bug fails its own call, not the thread",
    "loghub/server/http.py": "a route's bug fails its own request, not the gateway",
    "net/server.py": "a handler's bug fails its own call or connection, not the server",
    "raft/engine.py": "ends the process: what a replica promised may no longer be in memory",
    "testing/loop.py": _RUNS_OTHERS,
    "testing/fuzzer.py": _RUNS_OTHERS,
    "testing/nodes.py": "what a crashed program says while it is disposed of no longer matters",
    "testing/runner.py": _RUNS_OTHERS,
    "testing/sockets.py": _RUNS_OTHERS,
}
"""Files that may catch everything and go on; to clean up or map and raise is open to all."""

BANNED_EVERYWHERE = {
    "asyncio.as_completed": "its order differs from run to run",
    "asyncio.ensure_future": "use a TaskGroup, so that no task is an orphan",
    "eval": "runs what it is given",
    "exec": "runs what it is given",
    "marshal": "runs what it is given",
    "os.system": "runs a shell",
    "os.popen": "runs a shell",
    "pickle": "runs what it is given",
    "shelve": "runs what it is given",
    "yaml.load": "runs what it is given",
}

SIMULATABLE = (
    "clogs",
    "delivery",
    "disk",
    "dlog",
    "loghub",
    "logservice",
    "metastore",
    "net",
    "raft",
    "zeppelin",
)
BANNED_IN_SIMULATION = {
    "asyncio.to_thread": "threads run in an order of their own",
    "concurrent": "threads run in an order of their own",
    "datetime.datetime.now": "the clock comes from the environment",
    "os.urandom": "randomness comes from the environment",
    "random": "randomness comes from the environment",
    "secrets": "randomness comes from the environment",
    "threading": "threads run in an order of their own",
    "time": "the clock comes from the environment",
    "uuid.uuid1": "randomness comes from the environment",
    "uuid.uuid4": "randomness comes from the environment",
}
_REAL = "the real one; simulation has its own"
ALLOWED_IN_SIMULATION = {
    ("*", "random.Random"): "a type; the environment hands out seeded ones",
    ("delivery/deliveries.py", "threading"): "for programs that are all threads",
    ("clogs/client/sync_shipper.py", "threading"): "for programs that are all threads",
    ("clogs/client/log_handler.py", "threading"): "for programs that are all threads",
    ("clogs/client/process_hooks.py", "time"): "for programs that are all threads",
    ("clogs/client/sync_shipper.py", "concurrent"): "for programs that are all threads",
    ("clogs/client/sync_shipper.py", "time"): "for programs that are all threads",
    ("clogs/tail/files.py", "concurrent"): _REAL,
    ("disk/rocksdb.py", "asyncio.to_thread"): _REAL,
    ("disk/rocksdb.py", "threading"): _REAL,
    ("disk/loop_thread.py", "concurrent"): "for programs that are all threads",
    ("disk/loop_thread.py", "threading"): "for programs that are all threads",
    ("disk/real_environment.py", "asyncio.to_thread"): _REAL,
    ("disk/real_environment.py", "random"): _REAL,
    ("disk/real_environment.py", "time"): _REAL,
    ("disk/real_environment.py", "threading"): _REAL,
    ("dlog/log/offload.py", "asyncio.to_thread"): "for a library that blocks",
    ("loghub/client/sync_producer.py", "threading"): "for programs that are all threads",
    ("loghub/consumer/kafka_source.py", "concurrent"): "for a library that is all threads",
    ("loghub/consumer/processor.py", "concurrent"): "for users' code that blocks",
    ("loghub/consumer/processor.py", "threading"): "for users' code that blocks",
    ("logservice/client/sync_client.py", "concurrent"): "for programs that are all threads",
    ("zeppelin/backup_format.py", "asyncio.to_thread"): "for a library that blocks",
    ("net/zookeeper_connection.py", "asyncio.to_thread"): "for a library that is all threads",
}

SAME_NAME = {
    "Stream": "of RPC, the answers to one request; at the front door, a logstore",
}
"""Public classes whose name stands more than once, each with the reason."""

MACHINE_PATHS = re.compile(r"/(?:home|Users|root|work)/")
REGISTRIES = re.compile(
    r"https?://[\w.-]*(?:artifactory|nexus|jfrog|codeartifact|pkg\.dev|devpi|pythonhosted)",
    re.IGNORECASE,
)
TEXT_SUFFIXES = {".py", ".toml", ".md", ".cfg", ".ini", ".yml", ".yaml", ".txt", ".json", ".sh", ""}


def _names(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Every dotted name that is used, under the name of the module that it comes from."""
    aliases: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            for alias in node.names:
                aliases[alias.asname or alias.name.partition(".")[0]] = (
                    alias.name if alias.asname else alias.name.partition(".")[0]
                )
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                aliases[alias.asname or alias.name] = f"{node.module}.{alias.name}"
                yield node.lineno, f"{node.module}.{alias.name}"
    builtins = {"eval", "exec"}
    for node in ast.walk(tree):
        parts: list[str] = []
        inner = node
        while isinstance(inner, ast.Attribute):
            parts.append(inner.attr)
            inner = inner.value
        if isinstance(inner, ast.Name) and isinstance(node, ast.Attribute | ast.Name):
            first = aliases.get(inner.id)
            if first is not None and parts:
                yield node.lineno, ".".join([first, *reversed(parts)])
            elif first is not None or (inner.id in builtins and not parts):
                yield node.lineno, first or inner.id


def _matches(name: str, banned: str) -> bool:
    return name == banned or name.startswith(banned + ".")


@pytest.fixture(scope="module")
def trees() -> dict[str, ast.Module]:
    """Every file, parsed once for all rules."""
    return {name: ast.parse(file.read_text()) for name, file in FILES.items()}


def banned_uses(tree: ast.AST, banned: dict[str, str]) -> list[tuple[int, str, str]]:
    starts = {entry.partition(".")[0] for entry in banned}
    return sorted(
        {
            (line, name, reason)
            for line, name in _names(tree)
            if name.partition(".")[0] in starts
            for entry, reason in banned.items()
            if _matches(name, entry)
        }
    )


def wide_excepts(tree: ast.AST) -> list[int]:
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.ExceptHandler) and not isinstance(node.body[-1], ast.Raise):
            kinds = node.type.elts if isinstance(node.type, ast.Tuple) else [node.type]
            if any(
                kind is None
                or (isinstance(kind, ast.Name) and kind.id in ("Exception", "BaseException"))
                for kind in kinds
            ):
                found.append(node.lineno)
    return found


def test_a_public_class_name_has_one_meaning(trees: dict[str, ast.Module]) -> None:
    places: dict[str, list[str]] = {}
    for name, tree in trees.items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
                places.setdefault(node.name, []).append(name)
    twice = {name: files for name, files in places.items() if len(files) > 1}
    assert {name: files for name, files in twice.items() if name not in SAME_NAME} == {}
    assert SAME_NAME.keys() - twice.keys() == set(), "no class of this name stands twice any more"


def test_nothing_dangerous_is_called(trees: dict[str, ast.Module]) -> None:
    found = {name: banned_uses(tree, BANNED_EVERYWHERE) for name, tree in trees.items()}
    assert {name: uses for name, uses in found.items() if uses} == {}


def test_no_shell_is_run(trees: dict[str, ast.Module]) -> None:
    shells = [
        f"{name}:{node.value.lineno}"
        for name, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.keyword)
        and node.arg == "shell"
        and name != "cli/completion.py"  # there it names the shell that a script is for
        and not (isinstance(node.value, ast.Constant) and node.value.value is False)
    ]
    assert shells == [], "shell=True runs a shell"


def test_only_supervisors_catch_everything(trees: dict[str, ast.Module]) -> None:
    found = {name: wide_excepts(tree) for name, tree in trees.items() if name not in SUPERVISORS}
    assert {name: lines for name, lines in found.items() if lines} == {}


def test_futures_fail_in_one_way(trees: dict[str, ast.Module]) -> None:
    found = {
        name
        for name, tree in trees.items()
        for node in ast.walk(tree)
        if isinstance(node, ast.Attribute) and node.attr == "set_exception"
    }
    # `fail` tells the loop that the error was seen; what threads wait for is no loop's.
    assert found == {"base/futures.py", "loghub/consumer/processor.py"}


def test_what_is_simulated_takes_time_and_chance_from_its_environment(
    trees: dict[str, ast.Module],
) -> None:
    folders = tuple(f"{package}/" for package in SIMULATABLE)
    uses = [
        (name, use)
        for name, tree in trees.items()
        if name.startswith(folders)
        for use in banned_uses(tree, BANNED_IN_SIMULATION)
        if not any(
            place in ("*", name) and _matches(use[1], allowed)
            for place, allowed in ALLOWED_IN_SIMULATION
        )
        # The module's own name, as in `random.Random`, is judged by what is taken from it.
        and use[1] not in ("random", "time")
    ]
    assert uses == []


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("import pickle\npickle.loads(b'')", True),
        ("from pickle import loads", True),
        ("import pickle as p\np.loads(b'')", True),
        ("eval('1')", True),
        ("import os\nos.system('x')", True),
        ("from asyncio import as_completed", True),
        ("import asyncio\nasyncio.gather()", False),
        ("model.eval()", False),
        ("import os\nos.path.join('a')", False),
    ],
)
def test_the_check_for_banned_calls_sees_through_aliases(code: str, found: bool) -> None:
    assert bool(banned_uses(ast.parse(code), BANNED_EVERYWHERE)) is found


@pytest.mark.parametrize(
    ("code", "found"),
    [
        ("import time\ntime.time()", True),
        ("from time import monotonic", True),
        ("import random\nrandom.random()", True),
        ("import uuid\nuuid.uuid4()", True),
        ("import threading\nthreading.Thread()", True),
        ("clock.time()", False),
    ],
)
def test_the_check_for_simulation_sees_clocks_and_chance(code: str, found: bool) -> None:
    assert bool(banned_uses(ast.parse(code), BANNED_IN_SIMULATION)) is found


@pytest.mark.parametrize(
    ("handler", "found"),
    [
        ("except Exception: pass", True),
        ("except: pass", True),
        ("except (OSError, BaseException): pass", True),
        ("except OSError: pass", False),
        ("except BaseException: raise", False),
    ],
)
def test_the_check_for_wide_excepts_sees_tuples(handler: str, found: bool) -> None:
    assert bool(wide_excepts(ast.parse(f"try: pass\n{handler}"))) is found


def test_tracked_text_names_no_machine_and_no_registry() -> None:
    listed = subprocess.run(
        ["git", "-C", str(REPOSITORY), "ls-files", "-z"], capture_output=True, check=False
    )
    if listed.returncode != 0:
        pytest.skip("not available: git (this tree is not a checkout)")
    problems = []
    for name in listed.stdout.decode().split("\0"):
        file = REPOSITORY / name
        if not name or file.suffix not in TEXT_SUFFIXES or not file.is_file():
            continue
        if file.resolve() == Path(__file__).resolve():
            continue
        for number, line in enumerate(file.read_text(errors="replace").splitlines(), 1):
            if MACHINE_PATHS.search(line) or REGISTRIES.search(line):
                problems.append(f"{name}:{number}: {line.strip()[:100]}")
    assert problems == []
