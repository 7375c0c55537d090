"""What keeps the package fit for simulation."""

import ast
import pathlib

import raftwood
import raftwood.net
from raftwood.net.method_numbers import MethodNumber

FORBIDDEN = {"time", "threading", "secrets", "uuid", "os", "socket", "concurrent", "uvloop"}


# uvicorn serves HTTP, on real sockets alone; and so is TLS.
NOT_SIMULATED = {"http_listener.py", "tls_acceptor.py"}


def test_nothing_takes_time_randomness_or_threads_from_the_machine() -> None:
    (folder,) = raftwood.net.__path__
    for path in sorted(pathlib.Path(folder).glob("*.py")):
        if path.name in NOT_SIMULATED:
            continue
        for node in ast.walk(ast.parse(path.read_text())):
            names = []
            if isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            elif isinstance(node, ast.ImportFrom):
                names = [node.module or ""]
            for name in names:
                assert name.split(".")[0] not in FORBIDDEN, f"{path.name} imports {name}"
            if isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name):
                # Only the type of a source of randomness is named here, never a shared one.
                assert node.value.id != "random" or node.attr == "Random", path.name


SAME_NUMBER = {"DLOG_APPEND", "DLOG_TAIL", "DLOG_SEAL"}
"""Released in 0.1.0 with numbers of bookies' methods; no server has both."""


def test_a_method_number_means_one_method() -> None:
    twice = {name for name, number in MethodNumber.__members__.items() if number.name != name}
    assert twice == SAME_NUMBER


def test_every_method_has_its_number_from_the_table() -> None:
    """Its number and its name agree with the table, and none is made from a bare number."""
    methods = [
        (file, node)
        for file in sorted(pathlib.Path(raftwood.__file__).parent.rglob("*.py"))
        for node in ast.walk(ast.parse(file.read_text()))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in ("Method", "TypedMethod")
    ]
    used = set()
    for file, node in methods:
        number, name = node.args[:2]
        assert isinstance(number, ast.Attribute), f"{file}:{node.lineno} has a number of its own"
        assert isinstance(name, ast.Constant)
        assert number.attr == str(name.value).upper().replace("-", "_"), f"{file}:{node.lineno}"
        used.add(number.attr)
    assert used == MethodNumber.__members__.keys()
