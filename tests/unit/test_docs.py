"""The documentation names what there is; tests/interop/test_pages.py runs its examples."""

import re

from tests.kits.server.pages import PAGES, ROOT


def test_links_within_the_documentation_lead_somewhere() -> None:
    for page in [*PAGES, ROOT / "ARCHITECTURE.md", ROOT / "benchmarks/README.md"]:
        for target in re.findall(r"\]\(([^)#:]+)\)", page.read_text()):
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def test_make_targets_in_the_documentation_exist() -> None:
    makefile = (ROOT / "Makefile").read_text()
    for page in PAGES:
        for target in re.findall(r"(?:`|\$ )make ([a-z]+)", page.read_text()):
            assert f"\n{target}:" in makefile, f"{page.name} names make {target}"
