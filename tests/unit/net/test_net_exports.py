"""The public names of the package."""

import raftwood.net


def test_each_public_name_exists_once() -> None:
    names = raftwood.net.__all__
    assert sorted(set(names)) == names
    for name in names:
        assert getattr(raftwood.net, name) is not None
