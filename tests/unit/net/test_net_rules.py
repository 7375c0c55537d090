"""What keeps the package fit for simulation."""

import ast
import pathlib

import raftwood.net

FORBIDDEN = {"time", "threading", "secrets", "uuid", "os", "socket", "concurrent", "uvloop"}


# uvicorn serves HTTP, on real sockets alone; and so is TLS.
NOT_SIMULATED = {"http_listener.py", "tls_door.py"}


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
