"""The package exports what it says, and nothing of it is missing."""

import raftwood.simulation


def test_every_exported_name_exists_once_and_in_order() -> None:
    names = raftwood.simulation.__all__
    assert all(hasattr(raftwood.simulation, name) for name in names)
    assert len(set(names)) == len(names)


def test_every_module_says_what_it_is_for() -> None:
    assert "Start with" in (raftwood.simulation.__doc__ or "")
