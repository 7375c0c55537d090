"""Clients that hear of configurations from receivers, and the receivers that tell them."""

import asyncio
from collections.abc import Awaitable, Callable
from itertools import pairwise

import pytest

from raftwood.base.environment import Environment
from raftwood.base.errors import (
    InvalidName,
    NotFound,
    Overloaded,
    RaftwoodError,
    ShuttingDown,
    Unavailable,
)
from raftwood.base.seams import SetKey
from raftwood.clogs import configuration_store
from raftwood.clogs.configuration import (
    RingConfiguration,
    configuration_digest,
    encode_configuration,
)
from raftwood.clogs.configuration_sources import ReceiverConfigurationSource
from raftwood.clogs.configuration_store import ConfigurationService, ConfigurationStore
from raftwood.clogs.wire import ConfigurationAnswer, ConfigurationRequest
from raftwood.metastore.file_store import FileMetaStore
from raftwood.testing import Simulation, simulate
from tests.kits.clogs.rings import ring, versioned
from tests.unit.clogs.configuration.test_meta_store import following, numbered, on_store

A, B, C = ring("a"), ring("a", "b"), ring("a", "b", "c")


def answer(
    version: int, configuration: RingConfiguration, *, revision: int = 0
) -> ConfigurationAnswer:
    return ConfigurationAnswer(
        version,
        configuration_digest(configuration),
        encode_configuration(configuration),
        revision,
    )


def with_service(
    work: Callable[[ConfigurationService, ConfigurationStore, FileMetaStore], Awaitable[None]],
) -> None:
    async def on(store: FileMetaStore) -> None:
        service = ConfigurationService(store)
        await service.start()
        try:
            await work(service, ConfigurationStore(store, "r"), store)
        finally:
            await service.close()

    on_store(on)


def test_a_request_is_answered_at_once_where_the_client_has_another_one() -> None:
    async def work(service: ConfigurationService, rings: ConfigurationStore, _: object) -> None:
        await rings.set(A)
        found = await service.answer(ConfigurationRequest("r", wait_ms=60_000))
        assert (found.version, found.text) == (1, encode_configuration(A))
        await rings.set(B)
        await rings.rollback()
        # The same version, but another text of it than the receiver has.
        asked = ConfigurationRequest("r", 1, "other digest", 60_000)
        assert (await service.answer(asked)).text == encode_configuration(A)
        asked = ConfigurationRequest("r", 2, configuration_digest(B), 60_000)
        assert (await service.answer(asked)).version == 1

    with_service(work)


def test_a_request_waits_for_a_change_and_no_longer_than_it_may() -> None:
    async def work(service: ConfigurationService, rings: ConfigurationStore, _: object) -> None:
        loop = asyncio.get_running_loop()
        await rings.set(A)
        found = await service.answer(ConfigurationRequest("r"))
        known = ConfigurationRequest("r", 1, found.digest, 10_000, found.revision)
        began = loop.time()
        same = await service.answer(known)
        assert (same.version, same.digest, same.text) == (1, found.digest, b"")
        assert loop.time() - began == pytest.approx(10, abs=0.1)
        waiting = asyncio.create_task(service.answer(known))
        await asyncio.sleep(5)
        began = loop.time()
        await rings.set(B)
        assert (await waiting).version == 2
        assert loop.time() - began < 0.1
        # Nobody waits for longer than a minute, nor less than nothing.
        began = loop.time()
        asked = ConfigurationRequest("r", 2, configuration_digest(B), 1 << 60)
        assert (await service.answer(asked)).text == b""
        assert loop.time() - began == pytest.approx(60, abs=0.1)
        asked = ConfigurationRequest("r", 2, configuration_digest(B), -5)
        assert (await service.answer(asked)).text == b""

    with_service(work)


def test_a_receiver_that_is_behind_catches_up_before_it_answers() -> None:
    async def work(service: ConfigurationService, rings: ConfigurationStore, _: object) -> None:
        loop = asyncio.get_running_loop()
        await rings.set(A)
        old = await service.answer(ConfigurationRequest("r"))
        ahead = ConfigurationRequest("r", 2, configuration_digest(B), 10_000, old.revision + 1)
        waiting = asyncio.create_task(service.answer(ahead))
        await asyncio.sleep(1)
        assert not waiting.done()
        await rings.set(B)
        await rings.set(C)
        assert (await waiting).version == 3
        # A metastore that was begun anew never catches up: in the end it is believed.
        elsewhere = ConfigurationRequest("r", 9, "digest", 10_000, 10**9)
        began = loop.time()
        assert (await service.answer(elsewhere)).version == 3
        assert loop.time() - began == pytest.approx(10, abs=0.1)

    with_service(work)


def test_a_ring_without_a_configuration_is_told_when_the_wait_is_over() -> None:
    async def work(service: ConfigurationService, rings: ConfigurationStore, _: object) -> None:
        with pytest.raises(NotFound, match="'r' has no configuration"):
            await service.answer(ConfigurationRequest("r", wait_ms=1_000))
        with pytest.raises(InvalidName):
            await service.answer(ConfigurationRequest("a/b"))
        waiting = asyncio.create_task(service.answer(ConfigurationRequest("r", wait_ms=60_000)))
        await asyncio.sleep(1)
        await rings.set(A)
        assert (await waiting).version == 1

    with_service(work)


def test_a_receiver_without_its_metastore_says_so() -> None:
    async def work(
        service: ConfigurationService, rings: ConfigurationStore, store: FileMetaStore
    ) -> None:
        await rings.set(A)
        await service.answer(ConfigurationRequest("r"))
        # What cannot be read is as good as what cannot be reached.
        await store.transact((), (SetKey("clogs/r/current", b"?"),))
        await asyncio.sleep(1)
        with pytest.raises(Unavailable, match="ask another one"):
            await service.answer(ConfigurationRequest("r"))
        await store.compare_and_set("clogs/r/current", None, version=2)
        await rings.set(B)
        await asyncio.sleep(1)
        assert (await service.answer(ConfigurationRequest("r"))).version == 2

    with_service(work)


def test_one_watch_serves_all_who_wait(monkeypatch: pytest.MonkeyPatch) -> None:
    watches = 0
    watch = FileMetaStore.watch

    def counted(self: FileMetaStore, prefix: str, *, after_version: int) -> object:
        nonlocal watches
        watches += 1
        return watch(self, prefix, after_version=after_version)

    async def work(service: ConfigurationService, rings: ConfigurationStore, _: object) -> None:
        asked = ConfigurationRequest("r", wait_ms=60_000)
        waiting = [asyncio.create_task(service.answer(asked)) for _ in range(100)]
        await asyncio.sleep(1)
        await rings.set(A)
        assert {(await each).version for each in waiting} == {1}

    monkeypatch.setattr(FileMetaStore, "watch", counted)
    with_service(work)
    assert watches == 1


def test_rings_and_waits_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    async def work(service: ConfigurationService, rings: ConfigurationStore, _: object) -> None:
        await rings.set(A)
        for number in range(200):
            with pytest.raises(NotFound):
                await service.answer(ConfigurationRequest(f"r{number}"))
        assert len(service._rings) == configuration_store.RINGS_MAX
        assert (await service.answer(ConfigurationRequest("r"))).version == 1
        waiting = [
            asyncio.create_task(service.answer(ConfigurationRequest(f"r{number}", wait_ms=5_000)))
            for number in range(configuration_store.RINGS_MAX)
        ]
        await asyncio.sleep(1)
        with pytest.raises(Overloaded, match="rings are watched"):
            await service.answer(ConfigurationRequest("r"))
        monkeypatch.setattr(configuration_store, "WAITING_MAX", configuration_store.RINGS_MAX)
        with pytest.raises(Overloaded, match="too many clients"):
            await service.answer(ConfigurationRequest("r1"))
        assert (
            len(await asyncio.gather(*waiting, return_exceptions=True))
            == configuration_store.RINGS_MAX
        )
        assert (await service.answer(ConfigurationRequest("r"))).version == 1

    with_service(work)


def test_whoever_waits_is_told_when_the_receiver_ends() -> None:
    async def work(service: ConfigurationService, *_: object) -> None:
        waiting = asyncio.create_task(service.answer(ConfigurationRequest("r", wait_ms=60_000)))
        await asyncio.sleep(1)
        await service.close()
        with pytest.raises(ShuttingDown):
            await waiting
        with pytest.raises(ShuttingDown):
            await service.answer(ConfigurationRequest("r"))

    with_service(work)


class Receivers:
    """Answers what it is given, one after the other; then nothing new, in time."""

    def __init__(self, *answers: ConfigurationAnswer | RaftwoodError) -> None:
        self.answers = list(answers)
        self.asked: list[tuple[float, ConfigurationRequest]] = []

    async def ask(self, request: ConfigurationRequest) -> ConfigurationAnswer:
        self.asked.append((asyncio.get_running_loop().time(), request))
        if not self.answers:
            await asyncio.sleep(request.wait_ms / 1000)
            return ConfigurationAnswer(request.version, request.digest, b"", request.revision)
        given = self.answers.pop(0)
        if isinstance(given, RaftwoodError):
            raise given
        return given


def simulated(work: Callable[[Environment], Awaitable[None]]) -> None:
    async def scenario(simulation: Simulation) -> None:
        await work(simulation.environment)

    simulate(1, scenario)


def test_a_client_names_what_it_has_and_follows() -> None:
    receivers = Receivers(answer(5, A, revision=70), answer(4, B, revision=80))

    async def work(environment: Environment) -> None:
        source = ReceiverConfigurationSource(environment, receivers.ask, "r", wait_ms=1 << 40)
        changes = source.changes()
        assert await following(changes) == versioned(5, A)
        assert await following(changes) == versioned(4, B)
        await asyncio.sleep(1)
        assert [each for _, each in receivers.asked] == [
            ConfigurationRequest("r", 0, "", 60_000),
            ConfigurationRequest("r", 5, configuration_digest(A), 60_000, 70),
            ConfigurationRequest("r", 4, configuration_digest(B), 60_000, 80),
        ]
        await source.close()

    simulated(work)


def test_a_bad_configuration_is_refused_once_and_the_last_good_one_stays(
    capsys: pytest.CaptureFixture[str],
) -> None:
    bad = ConfigurationAnswer(6, configuration_digest(ring()), encode_configuration(ring()))
    damaged = ConfigurationAnswer(7, configuration_digest(B), encode_configuration(A))
    receivers = Receivers(answer(5, A), bad, damaged, answer(8, B))

    async def work(environment: Environment) -> None:
        source = ReceiverConfigurationSource(environment, receivers.ask, "r", wait_ms=1_000)
        changes = source.changes()
        assert await following(changes) == versioned(5, A)
        assert await following(changes) == versioned(8, B)
        # What was refused is named all the same, else it would be sent for ever.
        assert [each.version for _, each in receivers.asked] == [0, 5, 6, 7]
        await source.close()

    simulated(work)
    told = capsys.readouterr().err
    assert told.count("the ring has 0 servers") == 1
    assert told.count("another text than its digest") == 1


def test_errors_are_waited_out_longer_each_time_but_not_for_ever() -> None:
    receivers = Receivers(*[Unavailable("nobody is there")] * 30, answer(1, A))

    async def work(environment: Environment) -> None:
        source = ReceiverConfigurationSource(environment, receivers.ask, "r")
        changes = source.changes()
        async with asyncio.timeout(1_000):
            assert await anext(changes) == versioned(1, A)
        times = [at for at, _ in receivers.asked]
        pauses = [later - at for at, later in pairwise(times)][:30]
        assert 0.1 <= pauses[0] <= 0.2
        assert all(15 <= pause <= 30 for pause in pauses[10:])
        assert len(set(pauses)) == 30
        await source.close()

    simulated(work)


def test_a_receiver_that_does_not_wait_is_not_asked_in_a_hurry() -> None:
    count = 0

    async def hasty(request: ConfigurationRequest) -> ConfigurationAnswer:
        nonlocal count
        count += 1
        return answer(1, A) if count == 1 else ConfigurationAnswer(1, request.digest, b"")

    async def silent(_: ConfigurationRequest) -> ConfigurationAnswer:
        nonlocal count
        count += 1
        await asyncio.sleep(10**6)
        raise AssertionError

    async def work(environment: Environment) -> None:
        nonlocal count
        for ask in (hasty, silent):
            count = 0
            source = ReceiverConfigurationSource(environment, ask, "r", wait_ms=1_000)
            listening = asyncio.create_task(following(source.changes()))
            await asyncio.sleep(600)
            await source.close()
            await asyncio.wait([listening])
            listening.exception()
            assert 10 < count < 70

    simulated(work)


def test_the_first_configuration_of_a_ring_is_heard_of_at_once() -> None:
    async def work(
        service: ConfigurationService, rings: ConfigurationStore, store: FileMetaStore
    ) -> None:
        source = ReceiverConfigurationSource(store._environment, service.answer, "r", wait_ms=1_000)
        waiting = asyncio.create_task(anext(source.changes()))  # type: ignore[arg-type,var-annotated]
        await asyncio.sleep(100.3)
        loop = asyncio.get_running_loop()
        began = loop.time()
        await rings.set(A)
        assert await waiting == versioned(1, A)
        assert loop.time() - began < 0.3
        await source.close()

    with_service(work)


def test_clients_of_two_receivers_never_go_back_to_what_one_of_them_has_not_heard_yet() -> None:
    async def work(
        service: ConfigurationService, rings: ConfigurationStore, store: FileMetaStore
    ) -> None:
        other = ConfigurationService(store)
        await other.start()
        turns = 0

        async def ask(request: ConfigurationRequest) -> ConfigurationAnswer:
            nonlocal turns
            turns += 1
            return await (service if turns % 2 else other).answer(request)

        await rings.set(numbered(0))
        source = ReceiverConfigurationSource(store._environment, ask, "r", wait_ms=2_000)
        seen: list[int] = []

        async def listen() -> None:
            seen.extend([each.version async for each in source.changes()])

        listening = asyncio.create_task(listen())
        for number in range(1, 40):
            await asyncio.sleep(0.37 * (number % 9))
            await rings.set(numbered(number))
        await asyncio.sleep(5)
        await source.close()
        await listening
        await other.close()
        assert seen == sorted(seen)
        assert seen[-1] == 40

    with_service(work)
