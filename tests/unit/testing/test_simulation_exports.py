"""The package exports what it says, and nothing of it is missing."""

import raftwood.testing


def test_every_exported_name_exists_once_and_in_order() -> None:
    names = raftwood.testing.__all__
    assert all(hasattr(raftwood.testing, name) for name in names)
    assert len(set(names)) == len(names)


def test_every_module_says_what_it_is_for() -> None:
    assert "Start with" in (raftwood.testing.__doc__ or "")
