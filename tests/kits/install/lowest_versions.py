"""The lowest versions that pyproject.toml allows of the libraries that parse our formats."""

import re
import tomllib
from pathlib import Path

from tests.kits.install import python as python_libraries

REPOSITORY = Path(__file__).parents[3]
LIBRARIES = ("msgspec", "protobuf", "pyarrow")


def lowest() -> dict[str, str]:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    given = [*project["dependencies"], *project["optional-dependencies"]["arrow"]]
    bounds = dict(re.findall(r"^([\w-]+)>=([\d.]+)", "\n".join(given), re.MULTILINE))
    return {name: bounds[name] for name in LIBRARIES}


def install() -> Path:
    """The folder, for the front of PYTHONPATH; raises `NotInstalled`."""
    wanted = [f"{name}=={version}" for name, version in lowest().items()]
    return python_libraries.install("lowest-versions", *wanted)
