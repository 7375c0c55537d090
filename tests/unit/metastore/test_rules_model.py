"""The metastore's rules against a model that keeps all of history and looks at all of it."""

import random

import pytest

from raftwood.base.errors import NotFound, OutOfRange
from raftwood.base.seams import Compare, KeyChange, KeyEntry, KeyOperation, RemoveKey, SetKey
from raftwood.metastore import commands
from raftwood.metastore.commands import Command, MetastoreDone, Transacted
from raftwood.metastore.rules import MetastoreState

REMOVALS_KEPT = 3
KEYS = ("a", "a/b", "a/c", "b", "ü", "z")
PREFIXES = ("", "a", "a/", "b", "x", "ü")
Step = tuple[int, bytes | None, int]
"""Version, value or None, lease."""


class Model:
    """A list of all steps that ever were, and what follows from it."""

    def __init__(self) -> None:
        self.history: list[tuple[str, Step]] = []
        self.removed: list[str] = []
        self.leases: dict[int, tuple[int, int]] = {}
        """Time to live and deadline."""
        self.granted = 0
        self.version = 0
        self.floor = 0

    def latest(self) -> dict[str, Step]:
        return dict(self.history)

    def version_of(self, key: str) -> int:
        version, value, _ = self.latest().get(key, (0, None, 0))
        return 0 if value is None else version

    def entries(self) -> list[KeyEntry]:
        return [
            KeyEntry(key, value, version, lease)
            for key, (version, value, lease) in sorted(self.latest().items())
            if value is not None
        ]

    def change(self, steps: list[tuple[str, bytes | None, int]]) -> None:
        self.version += bool(steps)
        for key, value, lease in steps:
            self.history.append((key, (self.version, value, lease)))
            self.removed = [each for each in self.removed if each != key]
            if value is None:
                self.removed.append(key)
            if len(self.removed) > REMOVALS_KEPT:
                self.floor = self.latest()[self.removed.pop(0)][0]

    def end(self, lease: int) -> None:
        del self.leases[lease]
        self.change([(each.key, None, 0) for each in self.entries() if each.lease == lease])

    def renew(self, lease: int, now_ms: int) -> None:
        ttl_ms, _ = self.leases[lease]
        self.leases[lease] = (ttl_ms, now_ms + ttl_ms)

    def changes(self, prefix: str, after: int) -> dict[int, set[KeyChange]]:
        found: dict[int, set[KeyChange]] = {}
        for key, (version, value, _) in self.latest().items():
            if version > after and key.startswith(prefix):
                found.setdefault(version, set()).add(KeyChange(key, value, version))
        return found


class RulesAgainstModel:
    """One state and one model that go through the same random steps."""

    def __init__(self, seed: int) -> None:
        self.random = random.Random(seed)
        self.state = MetastoreState(removals_kept=REMOVALS_KEPT)
        self.model = Model()
        self.now_ms = 0

    def step(self) -> None:
        kinds = (
            self.transact, self.transact, self.transact, self.transact, self.grant, self.keep_alive,
            self.revoke, self.let_time_pass, self.come_back_from_a_snapshot,
        )  # fmt: skip
        self.random.choice(kinds)()
        self.compare_figures()
        self.compare_a_range_by_pages()
        self.compare_changes()

    def apply(self, command: Command) -> MetastoreDone | Transacted:
        """Also ends the model's leases that are due, as each command does before its own work."""
        for lease, (_, deadline_ms) in sorted(self.model.leases.items()):
            if deadline_ms <= self.now_ms:
                self.model.end(lease)
        return commands.decode_result(self.state.apply(commands.encode(command), self.now_ms))

    def let_time_pass(self) -> None:
        self.now_ms += self.random.randrange(40)
        self.apply(commands.ExpireLeases())

    def grant(self) -> None:
        ttl_ms = self.random.randint(1, 90)
        done = self.apply(commands.GrantLease(ttl_ms))
        self.model.granted += 1
        assert done == MetastoreDone(self.model.granted)
        self.model.leases[self.model.granted] = (ttl_ms, self.now_ms + ttl_ms)

    def some_lease(self) -> int:
        """Mostly one that there is, else one that has ended or never was."""
        alive = sorted(self.model.leases)
        if alive and self.random.random() < 0.95:
            return self.random.choice(alive)
        return self.random.randint(1, self.model.granted + 1)

    def keep_alive(self) -> None:
        lease = self.some_lease()
        try:
            self.apply(commands.KeepAlive(lease))
        except NotFound:
            assert lease not in self.model.leases
        else:
            self.model.renew(lease, self.now_ms)

    def revoke(self) -> None:
        lease = self.some_lease()
        self.apply(commands.RevokeLease(lease))
        if lease in self.model.leases:
            self.model.end(lease)

    def some_branch(self) -> list[tuple[str, bytes | None, int]]:
        branch: list[tuple[str, bytes | None, int]] = []
        for key in self.random.sample(KEYS, self.random.randrange(4)):
            if self.random.random() < 0.4:
                branch.append((key, None, 0))
            else:
                lease = self.some_lease() if self.random.random() < 0.4 else 0
                branch.append((key, self.random.randbytes(1), lease))
        return branch

    def transact(self) -> None:
        compares = tuple(
            Compare(key, self.model.version_of(key) if self.random.random() < 0.8 else 7)
            for key in self.random.sample(KEYS, self.random.randrange(3))
        )
        branches = [self.some_branch(), self.some_branch()]
        command = commands.Transact(compares, *(tuple(map(_operation, each)) for each in branches))
        try:
            result = self.apply(command)
        except NotFound:
            named = {lease for branch in branches for _, _, lease in branch if lease}
            assert named - set(self.model.leases)
            return
        held = all(self.model.version_of(each.key) == each.version for each in compares)
        taken = branches[0 if held else 1]
        self.model.change(
            [step for step in taken if step[1] is not None or self.model.version_of(step[0])]
        )
        for _, _, lease in taken:
            if lease:
                self.model.renew(lease, self.now_ms)
        assert result == Transacted(held, self.model.version)

    def come_back_from_a_snapshot(self) -> None:
        self.state = MetastoreState.restored(self.state.snapshot(), removals_kept=REMOVALS_KEPT)

    def compare_a_range_by_pages(self) -> None:
        prefix, limit = self.random.choice(PREFIXES), self.random.randint(1, 3)
        start, end = self.random.choice(KEYS), self.random.choice((*KEYS, None))
        wanted = [
            each
            for each in self.model.entries()
            if each.key.startswith(prefix) and start <= each.key and (end is None or each.key < end)
        ]
        found: list[KeyEntry] = []
        following: str | None = start
        while following is not None:
            page = self.state.range(prefix=prefix, start=following, end=end, limit=limit)
            assert len(page.entries) == limit or page.next_start is None
            assert page.version == self.model.version
            found += page.entries
            following = page.next_start
        assert found == wanted

    def compare_changes(self) -> None:
        prefix = self.random.choice(PREFIXES)
        after = self.model.version - self.random.randint(-1, 12)
        if not self.model.floor <= after <= self.model.version:
            with pytest.raises(OutOfRange):
                self.state.changes(prefix, after_version=after)
            return
        found = self.state.changes(prefix, after_version=after)
        versions = [group[0].version for group in found]
        assert versions == sorted(set(versions))
        wanted = self.model.changes(prefix, after)
        assert {group[0].version: set(group) for group in found} == wanted

    def compare_figures(self) -> None:
        status, model = self.state.status(), self.model
        assert (status.version, status.oldest_watch) == (model.version, model.floor)
        assert (status.keys, status.leases) == (len(model.entries()), len(model.leases))
        deadlines = [deadline for _, deadline in model.leases.values()]
        assert self.state.next_deadline_ms == min(deadlines, default=None)


def _operation(step: tuple[str, bytes | None, int]) -> KeyOperation:
    key, value, lease = step
    return RemoveKey(key) if value is None else SetKey(key, value, lease)


@pytest.mark.parametrize("seed", range(60))
def test_the_rules_do_what_a_model_does(seed: int) -> None:
    both = RulesAgainstModel(seed)
    for _ in range(150):
        both.step()
