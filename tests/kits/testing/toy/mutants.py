"""Bugs planted on purpose: a simulation that misses one of them proves nothing.

Each names the faults under which it shows, so that few seeds are needed.
"""

from collections.abc import Callable

from raftwood.base.environment import Environment
from raftwood.base.files import Operation
from raftwood.disk.segment_log import recovery
from raftwood.disk.store import Store
from raftwood.net import Call
from raftwood.testing import SLOW_DISK, NetworkProfile, SwarmProfile
from tests.kits.disk.without_sync import without_sync
from tests.kits.models import Mutant, Plant, replaced
from tests.kits.testing.toy import replica, workload
from tests.kits.testing.toy.cluster import Toy, run_toy
from tests.kits.testing.toy.protocol import QUERY, StoreRequest, Timestamp, Versioned
from tests.kits.testing.toy.register import Registers
from tests.kits.testing.toy.replica import Replica, ReplicaAddress


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


async def _open_without_sync(
    environment: Environment, address: ReplicaAddress, folder: str
) -> Store:
    return await _open_store(without_sync(environment), address, folder)


async def _nothing_written_again(*_: object) -> list[Operation]:
    return []


_open_store = replica._open_store
_FAR = NetworkProfile(delay_s=(0.001, 0.02), spike_probability=0.1, spike_s=(0.1, 0.9))
"""Replicas hear of a write at moments far apart."""


def _power(seed: int) -> SwarmProfile:
    return SwarmProfile(seed=seed, every_s={"power_loss_of_all": 2.0}, disk=SLOW_DISK)


def _crashes(seed: int) -> SwarmProfile:
    return SwarmProfile(seed=seed, every_s={"kill": 0.7, "power_loss": 1.0})


def _network(seed: int) -> SwarmProfile:
    return SwarmProfile(seed=seed, every_s={"kill": 1.0, "stall": 0.3}, network=_FAR)


def _syncs(seed: int) -> SwarmProfile:
    return SwarmProfile(seed=seed, every_s={"sync_error": 0.7, "power_loss": 1.5})


def _weather(profile: Callable[[int], SwarmProfile], toy: Toy) -> Callable[[int], object]:
    return lambda seed: run_toy(seed, toy, profile=profile(seed))


_SHORT = Toy(faults_s=12.0)
_IN_POWER_CUTS = _weather(_power, _SHORT)
_IN_CRASHES = _weather(_crashes, _SHORT)
_FAR_AWAY = _weather(_network, _SHORT)
_ON_A_BAD_DISK = _weather(_syncs, _SHORT)
# Many reads and few writes: concurrent writes would explain almost any value.
_READING = _weather(_network, Toy(faults_s=10.0, pause_s=0.02, read_share=0.9))


def _replica(kind: type[Replica]) -> Plant:
    return replaced(replica, Replica=kind)


def _registers(kind: type[Registers]) -> Plant:
    return replaced(workload, Registers=kind)


MUTANTS = {
    "acks before sync": Mutant(_IN_POWER_CUTS, _replica(AcksBeforeSync), first=3),
    "acks older versions at once": Mutant(_IN_POWER_CUTS, _replica(AcksOlderVersionsAtOnce)),
    "disk without sync": Mutant(
        _IN_POWER_CUTS, replaced(replica, _open_store=_open_without_sync), first=3
    ),
    "forgets its log": Mutant(_IN_CRASHES, _replica(ForgetsItsLog), first=3),
    "forgets timestamps": Mutant(_IN_CRASHES, _replica(ForgetsTimestamps), first=3),
    "keeps whatever comes last": Mutant(_FAR_AWAY, _replica(KeepsWhateverComesLast), first=2),
    "reads from one replica": Mutant(_READING, _registers(ReadsFromOneReplica), first=2),
    "reads without write-back": Mutant(_READING, _registers(ReadsWithoutWriteBack), first=12),
    "shares timestamps": Mutant(_READING, _registers(SharesTimestamps), first=2),
    "trusts the page cache after a failed sync": Mutant(
        _ON_A_BAD_DISK, replaced(recovery, _written_again=_nothing_written_again)
    ),
    "writes without asking": Mutant(_READING, _registers(WritesWithoutAsking)),
}
