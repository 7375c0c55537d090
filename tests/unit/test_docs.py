"""The documentation names what there is; tests/interop/test_pages.py runs its examples."""

import ast
import json
import re

import pytest

from tests.kits.server.pages import PAGES, ROOT, blocks

FRONT_DOOR = {"raftwood", "raftwood.aio", "raftwood.errors", "raftwood.testing"}
"""What programs import; those with jobs on streams import `raftwood.pipeline`, too."""


def programs() -> dict[str, list[str]]:
    """What users copy, by the file that has it."""
    found = {page.name: blocks(page, "python") for page in PAGES}
    for page in (ROOT / "examples").rglob("*.md"):
        found[str(page.relative_to(ROOT))] = blocks(page, "python")
    for program in (ROOT / "examples").rglob("*.py"):
        found[str(program.relative_to(ROOT))] = [program.read_text()]
    for notebook in (ROOT / "notebooks").glob("*.ipynb"):
        found[notebook.name] = [
            "".join(cell["source"])
            for cell in json.loads(notebook.read_text())["cells"]
            if cell["cell_type"] == "code"
        ]
    return found


def imported(program: str) -> set[str]:
    """Modules of Raftwood that a program imports, `from raftwood import aio` being one."""
    modules: set[str] = set()
    for node in ast.walk(ast.parse(program)):
        if isinstance(node, ast.Import):
            modules |= {each.name for each in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module == "raftwood":
            packages = {each.name for each in node.names if _is_module(each.name)}
            modules |= {f"raftwood.{name}" for name in packages} or {"raftwood"}
        elif isinstance(node, ast.ImportFrom) and node.module:
            modules.add(node.module)
    return {module for module in modules if module.startswith("raftwood")}


def _is_module(name: str) -> bool:
    place = ROOT / "src/raftwood" / name
    return place.is_dir() or place.with_suffix(".py").exists()


def test_examples_import_from_the_front_door_alone() -> None:
    examples = programs()
    assert sum(map(len, examples.values())) > 20
    for page, found in examples.items():
        allowed = FRONT_DOOR | ({"raftwood.pipeline"} if "pipeline" in page else set())
        others = set().union(*map(imported, found)) - allowed
        assert not others, f"{page} imports {others}: export the names from the front door"


@pytest.mark.parametrize(
    "line",
    [
        "from raftwood.loghub.client import LogHubClient",
        "from raftwood.net import (\n    Secret,\n)",
        "import raftwood.disk.store",
        "from raftwood import loghub",
        "def later():\n    from raftwood_demos.web_logs import web_logs",
    ],
)
def test_an_import_from_elsewhere_is_found(line: str) -> None:
    assert imported(f"import asyncio\nimport raftwood\n{line}\n") - FRONT_DOOR
    assert imported("from raftwood import aio, connect\n") <= FRONT_DOOR


def test_links_within_the_documentation_lead_somewhere() -> None:
    for page in [*PAGES, ROOT / "ARCHITECTURE.md", ROOT / "benchmarks/README.md"]:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_make_targets_in_the_documentation_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for page in PAGES:
        for target in re.findall(r"(?:`|\$ )make ([a-z]+)", page.read_text()):
            assert f"\n{target}:" in makefile, f"{page.name} names make {target}"
