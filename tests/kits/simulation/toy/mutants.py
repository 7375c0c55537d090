"""Bugs planted on purpose: a simulation that misses one of them proves nothing.

Each names the faults under which it shows, so that few seeds are needed.
"""

from collections.abc import Callable, Sequence

import msgspec

from raftwood.base import files as seam
from raftwood.base.environment import Environment
from raftwood.base.files import Completion, Files, Operation
from raftwood.net import Call
from raftwood.simulation import SLOW_DISK, NetworkProfile, SwarmProfile
from tests.kits.simulation.toy.cluster import Toy
from tests.kits.simulation.toy.protocol import QUERY, StoreRequest, Timestamp, Versioned
from tests.kits.simulation.toy.register import Registers
from tests.kits.simulation.toy.replica import Replica


class AcksBeforeSync(Replica):
    async def _store(self, _call: Call, request: StoreRequest) -> bool:
        if self._is_later(request):
            self._log.write(self._records(request))
            self._written[request.key] = request.versioned.timestamp
            self._durable[request.key] = request.versioned
        return True


class AcksOlderVersionsAtOnce(Replica):
    """Says that a version is kept while the later one in its place is not durable yet."""

    async def _store(self, _call: Call, request: StoreRequest) -> bool:
        if not self._is_later(request):
            return True
        return await super()._store(_call, request)


class ForgetsItsLog(Replica):
    def _recovered(self, key: int, versioned: Versioned) -> None:  # noqa: ARG002
        super()._recovered(key, Versioned())


class ForgetsTimestamps(Replica):
    def _recovered(self, key: int, versioned: Versioned) -> None:
        super()._recovered(key, Versioned(Timestamp(), versioned.value))


class KeepsWhateverComesLast(Replica):
    def _is_later(self, request: StoreRequest) -> bool:
        return request.versioned.timestamp != self._written.get(request.key)


class ReadsFromOneReplica(Registers):
    async def read(self, key: int) -> str:
        return (await self._ask(QUERY, key, 1))[0].value


class ReadsWithoutWriteBack(Registers):
    async def _write_back(self, key: int, latest: Versioned) -> None:
        pass


class WritesWithoutAsking(Registers):
    """Counts its own writes only, and so comes before those of others."""

    async def write(self, key: int, value: str) -> None:
        versioned = Versioned(self._timestamp(self._operation), value)
        await self._write_back(key, versioned)


class SharesTimestamps(Registers):
    """Two writers at once take the same one."""

    def _timestamp(self, counter: int) -> Timestamp:
        return Timestamp(counter, 0, 0)


class _WithoutSync:
    """A disk driver that leaves the log's syncs out."""

    def __init__(self, files: Files) -> None:
        self._files = files

    def submit(
        self, operations: Sequence[Operation], callback: Callable[[Completion], None]
    ) -> None:
        kept = [each for each in operations if not isinstance(each, seam.DataSync)]
        self._files.submit(kept, callback)


def _without_sync(environment: Environment) -> Environment:
    return msgspec.structs.replace(environment, files=_WithoutSync(environment.files))


_SHORT_S = 12.0
_FAR = NetworkProfile(delay_s=(0.001, 0.02), spike_probability=0.1, spike_s=(0.1, 0.9))
"""Replicas hear of a write at moments far apart."""


def _power(seed: int) -> SwarmProfile:
    return SwarmProfile(seed=seed, every_s={"power_loss_of_all": 2.0}, disk=SLOW_DISK)


def _crashes(seed: int) -> SwarmProfile:
    return SwarmProfile(seed=seed, every_s={"kill": 0.7, "power_loss": 1.0})


def _network(seed: int) -> SwarmProfile:
    return SwarmProfile(seed=seed, every_s={"kill": 1.0, "stall": 0.3}, network=_FAR)


class Mutant(msgspec.Struct, frozen=True):
    """A changed toy, and the faults that show the change."""

    toy: Toy
    profile: Callable[[int], SwarmProfile]


def _replica(kind: type[Replica], profile: Callable[[int], SwarmProfile]) -> Mutant:
    return Mutant(Toy(replica=kind, faults_s=_SHORT_S), profile)


def _registers(kind: type[Registers]) -> Mutant:
    # Many reads and few writes: concurrent writes would explain almost any value.
    return Mutant(Toy(registers=kind, faults_s=10.0, pause_s=0.02, read_share=0.9), _network)


MUTANTS = {
    "acks before sync": _replica(AcksBeforeSync, _power),
    "acks older versions at once": _replica(AcksOlderVersionsAtOnce, _power),
    "disk without sync": Mutant(Toy(environment=_without_sync, faults_s=_SHORT_S), _power),
    "forgets its log": _replica(ForgetsItsLog, _crashes),
    "forgets timestamps": _replica(ForgetsTimestamps, _crashes),
    "keeps whatever comes last": _replica(KeepsWhateverComesLast, _network),
    "reads from one replica": _registers(ReadsFromOneReplica),
    "reads without write-back": _registers(ReadsWithoutWriteBack),
    "shares timestamps": _registers(SharesTimestamps),
    "writes without asking": _registers(WritesWithoutAsking),
}
