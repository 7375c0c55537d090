"""The examples in the documentation are run: each Python block, and each `raftwood` command."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from raftwood.server.standalone import PORTS
from tests.kits.ports import consecutive_ports, free_ports
from tests.kits.server.pages import PAGES, blocks
from tests.kits.server.quick_commands import QuickCommands
from tests.kits.servers.shared import shared

STORY_S_MAX = 280


def starts_stores(page: Path) -> bool:
    starting = r"^\$ raftwood (serve|logservice start|standalone)"
    return bool(re.search(starting, page.read_text(), re.MULTILINE))


def needs_stores(block: str) -> bool:
    """Whether an example in Python uses the stores that its page starts."""
    return "cluster.toml" in block or "import raftwood\n" in block or "import aio\n" in block


PYTHON = [
    pytest.param(block, id=f"{page.stem}-{number}")
    for page in PAGES
    for number, block in enumerate(blocks(page, "python"))
    if not needs_stores(block) and page.stem != "pipeline"  # run by tests/pipeline, with Spark
]
CONSOLE = [
    pytest.param(block, id=f"{page.stem}-{number}")
    for page in PAGES
    for number, block in enumerate(blocks(page, "console"))
    if "$ raftwood" in block and not starts_stores(page)
]
STORIES = [pytest.param(page, id=page.stem) for page in PAGES if starts_stores(page)]
"""Pages that start stores: what they show is done from top to bottom, in one shell."""


def run(script: list[str], folder: Path, *programs: str) -> None:
    """In a shell that ends where a command fails, with programs at the front of its path; the user
    has no contexts but those that are made in the folder.
    """
    path = os.pathsep.join([*programs, os.environ["PATH"]])
    environment = os.environ | {"PATH": path, "XDG_CONFIG_HOME": f"{folder}/config"}
    del environment["RAFTWOOD_CONTEXT"]
    with subprocess.Popen(("bash", "-c", "\n".join(script)), cwd=folder, env=environment) as shell:
        try:
            assert shell.wait(timeout=STORY_S_MAX) == 0
        finally:
            shell.terminate()  # so that it ends what it has started


@pytest.fixture(scope="session")
def quick() -> str:
    """The folder with a `raftwood` that is loaded already."""
    return shared(QuickCommands).path


@pytest.mark.parametrize("block", PYTHON)
def test_a_python_example_runs(block: str, tmp_path: Path, quick: str) -> None:
    (tmp_path / "example.py").write_text(block)
    run(["exec run-example example.py"], tmp_path, quick)


@pytest.mark.parametrize("block", CONSOLE)
def test_console_examples_run_by_the_installed_command(block: str, tmp_path: Path) -> None:
    commands = [line[2:] for line in block.splitlines() if line.startswith("$ raftwood")]
    run(["set -e", *commands], tmp_path, str(Path(sys.executable).parent))


@pytest.mark.parametrize("page", STORIES)
def test_a_page_that_starts_stores_runs_from_top_to_bottom(
    page: Path, tmp_path: Path, quick: str
) -> None:
    story = page.read_text()
    # Its ports may be in use here.
    if ports := sorted({*re.findall(r"127\.0\.0\.1:(\d+)", story)}):
        for port, free in zip(ports, free_ports(len(ports)), strict=True):
            story = story.replace(port, str(free))
    base = f"--port-base={consecutive_ports(PORTS)}"
    story = story.replace("$ raftwood standalone", f"$ raftwood standalone {base}")
    # With job control, as in a shell that somebody types into: `kill %3` ends the third store.
    # At the end all at once: in order, parts would wait for those that are gone already.
    script = ["set -em", "trap 'kill -9 $(jobs -p) 2>&-; wait' EXIT", "trap 'exit 1' TERM"]
    pattern = r"^```(console|python)\n(.*?)^```$"
    for number, (language, block) in enumerate(
        re.findall(pattern, story, re.DOTALL | re.MULTILINE)
    ):
        if language == "console":
            script += [line[2:] for line in block.splitlines() if line.startswith("$ ")]
        elif needs_stores(block):
            (tmp_path / f"example-{number}.py").write_text(block)
            script.append(f"run-example example-{number}.py")
    run(script, tmp_path, quick)
