"""The examples in the documentation are run: each Python block, and each `raftwood` command."""

import os
import re
import socket
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted([ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")])


def blocks(page: Path, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```$", page.read_text(), re.DOTALL | re.MULTILINE)


def starts_stores(page: Path) -> bool:
    return bool(re.search(r"^\$ raftwood (serve|logservice start)", page.read_text(), re.MULTILINE))


def needs_stores(block: str) -> bool:
    """Whether an example in Python uses the stores that its page starts."""
    return "cluster.toml" in block


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


@pytest.mark.parametrize("block", PYTHON)
def test_a_python_example_runs(block: str, tmp_path: Path) -> None:
    subprocess.run(
        (sys.executable, "-W", "error", "-c", block), cwd=tmp_path, check=True, timeout=60
    )


@pytest.mark.parametrize("block", CONSOLE)
def test_console_examples_run(block: str, tmp_path: Path) -> None:
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    commands = [line[2:] for line in block.splitlines() if line.startswith("$ raftwood")]
    assert commands
    for command in commands:
        subprocess.run(
            ("sh", "-ec", command), cwd=tmp_path, env=environment, check=True, timeout=60
        )


@pytest.mark.slow
@pytest.mark.parametrize("page", STORIES)
def test_a_page_that_starts_stores_runs_from_top_to_bottom(page: Path, tmp_path: Path) -> None:
    environment = os.environ | {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}
    story = page.read_text()
    # Its ports may be in use here.
    for port in sorted({*re.findall(r"127\.0\.0\.1:(\d+)", story)}):
        story = story.replace(port, str(_free_port()))
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
            script.append(f"python -W error example-{number}.py")
    with subprocess.Popen(
        ("bash", "-c", "\n".join(script)), cwd=tmp_path, env=environment
    ) as shell:
        try:
            assert shell.wait(timeout=240) == 0
        finally:
            shell.terminate()  # so that it ends what it has started


def _free_port() -> int:
    with socket.socket() as unused:
        unused.bind(("127.0.0.1", 0))
        return int(unused.getsockname()[1])


def test_links_within_the_documentation_lead_somewhere() -> None:
    for page in [*PAGES, ROOT / "ARCHITECTURE.md", ROOT / "benchmarks/README.md"]:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_make_targets_in_the_documentation_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for page in PAGES:
        for target in re.findall(r"(?:`|\$ )make ([a-z]+)", page.read_text()):
            assert f"\n{target}:" in makefile, f"{page.name} names make {target}"
