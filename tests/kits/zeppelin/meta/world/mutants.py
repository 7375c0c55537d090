"""Hand-overs that are wrong, to be planted: each must be found in more than one world."""

from typing import Any

import pytest

from raftwood.zeppelin.meta import handover
from raftwood.zeppelin.meta.heard import Reign
from raftwood.zeppelin.meta.view import View


def frozen_before_the_freeze(monkeypatch: pytest.MonkeyPatch) -> None:
    """The target is where the master was when it spoke last, frozen or not."""

    def has_all(view: View, place: Any, target: Any, *, master: Any) -> bool:
        frozen, reached = view.offset(master, place), view.offset(target, place)
        return frozen is not None and reached is not None and reached.position >= frozen.position

    monkeypatch.setattr(handover, "_has_all", has_all)


def frozen_with_offsets_from_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """A master says that it is frozen, and how far it was the last time is believed."""
    hear = Reign.hear
    told: dict[Any, dict[Any, Any]] = {}

    def mutant(self: Reign, heartbeat: Any, now_ms: int) -> bool:
        counts = hear(self, heartbeat, now_ms)
        if counts:
            heard, before = self.nodes[heartbeat.node], told.get(heartbeat.node, {})
            told[heartbeat.node] = {**heard.offsets}
            for key in heard.offsets:
                if key in before and key in self.seen and self.seen[key].master == heartbeat.node:
                    heard.offsets[key] = before[key]
        return counts

    monkeypatch.setattr(Reign, "hear", mutant)
