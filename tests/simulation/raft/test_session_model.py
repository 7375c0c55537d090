"""Sessions keep their promises under seeded traffic."""

from tests.kits.raft.session_model import run


def test_sessions_do_what_the_model_says() -> None:
    counts = run(0, 5_000)
    assert counts["bytes"] >= 1_500, counts
