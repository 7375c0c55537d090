"""What the package shows to the world: documented modules, and `__all__` lists that are true."""

import ast
import importlib
import types
from pathlib import Path

import raftwood

ROOT = Path(raftwood.__file__).parent


def _module_name(file: Path) -> str:
    parts = file.relative_to(ROOT.parent).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


FILES = {_module_name(file): file for file in sorted(ROOT.rglob("*.py"))}
EXTRAS = {
    "pyspark",
    "numpy",
    "pyarrow",
    "sqlalchemy",
    "confluent_kafka",
    "kazoo",
    "google",
    "jinja2",
}
PACKAGES = [name for name, file in FILES.items() if file.name == "__init__.py"]


def _has_all(name: str) -> bool:
    text = FILES[name].read_text()
    return "__all__" in text and any(
        isinstance(target, ast.Name) and target.id == "__all__"
        for node in ast.parse(text).body
        if isinstance(node, ast.Assign | ast.AnnAssign)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
    )


def test_every_module_says_what_it_is_for() -> None:
    docstrings = {
        name: ast.get_docstring(ast.parse(file.read_text())) or "" for name, file in FILES.items()
    }
    assert {name: said for name, said in docstrings.items() if len(said.split()) < 4} == {}


def test_every_folder_with_modules_is_a_package() -> None:
    folders = {file.parent for file in FILES.values()}
    assert [folder for folder in folders if not (folder / "__init__.py").exists()] == []


def test_the_package_is_marked_as_typed() -> None:
    assert (ROOT / "py.typed").exists()


def test_all_lists_exactly_what_is_public() -> None:
    for name in FILES:
        if _has_all(name):
            _check_all(name)


def _check_all(name: str) -> None:
    module = importlib.import_module(name)
    listed = list(module.__all__)
    assert len(listed) == len(set(listed)), f"{name}.__all__ names something twice"
    for entry in listed:
        assert getattr(module, entry, None) is not None, f"{name}.{entry} does not resolve"
        assert not entry.startswith("_"), f"{name}.{entry} is private"
    # A package's list is what it gives on; a module's is what it defines.
    defined = {
        entry
        for entry, value in vars(module).items()
        if not entry.startswith("_")
        and not isinstance(value, types.ModuleType)
        and getattr(value, "__module__", "").startswith("raftwood")
        and value.__module__ != "raftwood.base.lazy"
        and (name in PACKAGES or value.__module__ == name)
    }
    assert defined - set(listed) == set(), f"{name}.__all__ lacks something public"


def test_every_module_imports_unless_its_extra_is_missing() -> None:
    failed = {}
    for name in FILES:
        if not name.endswith("__main__"):
            try:
                importlib.import_module(name)
            except ModuleNotFoundError as error:
                if (error.name or "").partition(".")[0] not in EXTRAS:
                    failed[name] = error
    assert failed == {}
