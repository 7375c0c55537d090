"""Logins: the right password, a bounded number of guesses, and none that says who exists."""

import asyncio
import random

import pytest

from raftwood.base.errors import InvalidInput, Overloaded
from raftwood.zeppelin import passwords as module
from raftwood.zeppelin.passwords import Logins, is_password, password_hash
from tests.kits.running import run
from tests.kits.zeppelin.static_view import PASSWORD, WRITER, single_node


def test_a_hash_is_of_one_password_and_no_two_are_the_same() -> None:
    source = random.Random(1)
    first, second = password_hash(b"secret", source), password_hash(b"secret", source)
    assert first != second
    assert is_password(b"secret", first)
    assert is_password(b"secret", second)
    assert not is_password(b"Secret", first)
    for broken in ("", "scrypt$1$2$3", "scrypt$3$00$00", "scrypt$99999999$00$00", "plain$4$00$00"):
        assert not is_password(b"secret", broken)
    with pytest.raises(InvalidInput, match="0 bytes"):
        password_hash(b"", source)


def test_who_was_right_once_is_not_checked_again(monkeypatch: pytest.MonkeyPatch) -> None:
    topology = single_node().topology
    logins = Logins(lambda: topology, random.Random(0))
    checked = []

    def check(password: bytes, kept: str) -> bool:
        checked.append(password)
        return is_password(password, kept)

    monkeypatch.setattr(module, "is_password", check)

    async def main() -> None:
        right = PASSWORD.encode()
        for _ in range(3):
            assert await logins.verified(WRITER, right) is topology.users[WRITER]
        assert checked == [right]
        assert await logins.verified(WRITER, b"guess") is None
        assert await logins.verified("nobody", right) is None
        assert await logins.verified(WRITER, b"x" * 10_000) is None
        assert checked == [right, b"guess", right]

    run(main())


def test_guesses_wait_for_one_another_and_above_a_bound_are_refused(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "WAIT_S_MAX", 0.12)
    # However long a check takes here, it is not what the others wait for.
    monkeypatch.setattr(module, "is_password", lambda *_: False)
    topology = single_node().topology
    logins = Logins(lambda: topology, random.Random(0))

    async def main() -> None:
        answers = await asyncio.gather(
            *(logins.verified(WRITER, b"guess%d" % number) for number in range(10)),
            return_exceptions=True,
        )
        assert 2 <= answers.count(None) <= 4
        assert sum(isinstance(each, Overloaded) for each in answers) == 10 - answers.count(None)

    run(main())


def test_many_connections_that_log_in_at_once_wait_for_one_check(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    topology = single_node().topology
    logins = Logins(lambda: topology, random.Random(0))
    checked = []

    def check(password: bytes, _: str) -> bool:
        checked.append(password)
        return password == PASSWORD.encode()

    monkeypatch.setattr(module, "is_password", check)

    async def main() -> None:
        async with asyncio.timeout(60):
            right = PASSWORD.encode()
            users = await asyncio.gather(*(logins.verified(WRITER, right) for _ in range(500)))
            assert users == [topology.users[WRITER]] * 500
            guesses = (logins.verified(WRITER, b"guess") for _ in range(500))
            assert await asyncio.gather(*guesses) == [None] * 500
        assert checked.count(right) == 1
        # The first is checked at once where its turn has come, and then one for all others.
        assert checked.count(b"guess") <= 2

    run(main())


def test_a_login_that_is_given_up_holds_nobody_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "is_password", lambda password, _: password == PASSWORD.encode())
    topology = single_node().topology
    logins = Logins(lambda: topology, random.Random(0))

    async def main() -> None:
        await logins.verified(WRITER, b"guess")  # the next check has to wait
        first = asyncio.create_task(logins.verified(WRITER, PASSWORD.encode()))
        second = asyncio.create_task(logins.verified(WRITER, PASSWORD.encode()))
        await asyncio.sleep(0)
        first.cancel()
        assert await second is topology.users[WRITER]
        assert first.cancelled()

    run(main())
