"""A disk driver that leaves the syncs of data out: a bug for simulations to catch."""

from collections.abc import Callable, Sequence

import msgspec

from raftwood.base import files as seam
from raftwood.base.environment import Environment
from raftwood.base.files import Completion, Files, Operation


class _WithoutSync:
    def __init__(self, files: Files) -> None:
        self._files = files

    def submit(
        self, operations: Sequence[Operation], callback: Callable[[Completion], None]
    ) -> None:
        kept = [each for each in operations if not isinstance(each, seam.DataSync)]
        self._files.submit(kept, callback)


def without_sync(environment: Environment) -> Environment:
    return msgspec.structs.replace(environment, files=_WithoutSync(environment.files))
