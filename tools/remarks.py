"""Lists small modules that one other module imports: they may live with their importer.

`make lint` prints the list as a remark. It fails nothing, for some modules are small with reason:
one that a light process loads, say, or one that keeps a heavy library out of a client.
"""

import ast
import sys
from collections import defaultdict
from pathlib import Path

SOURCE = Path(__file__).parents[1] / "src"
LINES_MIN = 60


def _module_name(file: Path) -> str:
    parts = file.relative_to(SOURCE).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def small_modules(files: dict[str, Path]) -> dict[str, str]:
    """Module → its one importer, for each module below `LINES_MIN` lines."""
    importers: dict[str, set[str]] = defaultdict(set)
    for name, file in files.items():
        for node in ast.walk(ast.parse(file.read_text())):
            if isinstance(node, ast.ImportFrom) and node.module:
                for alias in node.names:
                    inner = f"{node.module}.{alias.name}"
                    importers[inner if inner in files else node.module].add(name)
    return {
        name: next(iter(importers[name]))
        for name, file in files.items()
        if file.name != "__init__.py"
        and len(importers[name] - {name}) == 1
        and len(file.read_text().splitlines()) < LINES_MIN
    }


def main() -> int:
    files = {_module_name(file): file for file in sorted(SOURCE.rglob("*.py"))}
    for name, importer in small_modules(files).items():
        sys.stdout.write(
            f"remark: {name} is below {LINES_MIN} lines, and only {importer} imports it\n"
        )
    return 0


if __name__ == "__main__":
    sys.exit(main())
