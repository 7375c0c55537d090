"""What every `KvEngine` must do: one suite, run by each implementation with its own factory.

    class TestRocksEngine(KvSuite):
        @asynccontextmanager
        async def opened(self, folder: str) -> AsyncIterator[KvEngine]: ...

`opened` opens the engine in a folder and closes it at the end; opening the folder again must find
what was there. An engine that lives in simulation overrides `run` as well.
"""

import asyncio
import os
import tempfile
from collections.abc import Coroutine
from contextlib import AbstractAsyncContextManager
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from raftwood.base.errors import AlreadyExists, ShuttingDown
from raftwood.base.seams import Delete, DeleteRange, KvEngine, Mutation, Put

KEYS = st.binary(max_size=3) | st.sampled_from([b"a", b"b", b"aa", b"\xff", b"\xff\xff", b"\x00"])
MUTATIONS: st.SearchStrategy[Mutation] = st.one_of(
    st.builds(Put, KEYS, st.binary(max_size=20)),
    st.builds(Delete, KEYS),
    st.builds(DeleteRange, KEYS, KEYS),
)
STEPS = st.lists(
    st.one_of(
        st.lists(MUTATIONS, max_size=5),
        st.tuples(st.just("scan"), KEYS, st.none() | KEYS, st.booleans()),
        st.tuples(st.just("multi_get"), st.lists(KEYS, max_size=5)),
        st.sampled_from(["flush", "reopen", "checkpoint", "hold a scan"]),
    ),
    max_size=25,
)


def apply_to_model(model: dict[bytes, bytes], mutations: list[Mutation]) -> None:
    for mutation in mutations:
        match mutation:
            case Put(key, value):
                model[key] = value
            case Delete(key):
                model.pop(key, None)
            case DeleteRange(start, end):
                for key in [key for key in model if start <= key < end]:
                    del model[key]


def expected_scan(
    model: dict[bytes, bytes], start: bytes, end: bytes | None, *, reverse: bool
) -> list[tuple[bytes, bytes]]:
    pairs = [
        (key, value) for key, value in model.items() if key >= start and (end is None or key < end)
    ]
    return sorted(pairs, reverse=reverse)


class KvSuite:
    def opened(self, folder: str) -> AbstractAsyncContextManager[KvEngine]:
        raise NotImplementedError

    def run(self, main: Coroutine[Any, Any, None]) -> None:
        asyncio.run(main)

    @settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
    @given(steps=STEPS)
    def test_it_behaves_as_a_sorted_dictionary(self, steps: list[Any]) -> None:
        with tempfile.TemporaryDirectory() as folder:
            self.run(self._follow(steps, folder))

    async def _follow(self, steps: list[Any], folder: str) -> None:
        model: dict[bytes, bytes] = {}
        remaining = list(enumerate(steps))
        while True:
            held: list[tuple[Any, list[tuple[bytes, bytes]]]] = []
            async with self.opened(os.path.join(folder, "kv")) as engine:
                while remaining:
                    number, step = remaining.pop(0)
                    if step == "reopen":
                        break
                    copy = os.path.join(folder, f"copy-{number}")
                    await self._take(step, engine, model, copy, held)
                for scan, expected in held:
                    assert list(scan) == expected
                assert list(engine.scan()) == expected_scan(model, b"", None, reverse=False)
            if not remaining:
                return

    async def _take(
        self,
        step: Any,
        engine: KvEngine,
        model: dict[bytes, bytes],
        copy: str,
        held: list[tuple[Any, list[tuple[bytes, bytes]]]],
    ) -> None:
        match step:
            case "flush":
                await engine.flush()
            case "checkpoint":
                await engine.checkpoint(copy)
                async with self.opened(copy) as other:
                    assert dict(other.scan()) == model
            case "hold a scan":
                held.append((engine.scan(), sorted(model.items())))
            case ("scan", start, end, reverse):
                found = list(engine.scan(start, end, reverse=reverse))
                assert found == expected_scan(model, start, end, reverse=reverse)
            case ("multi_get", keys):
                assert await engine.multi_get(keys) == [model.get(key) for key in keys]
            case mutations:
                engine.write_batch(mutations)
                apply_to_model(model, mutations)
                for mutation in mutations:
                    if not isinstance(mutation, DeleteRange):
                        assert engine.get(mutation.key) == model.get(mutation.key)

    def test_a_scan_sees_the_moment_it_was_made_not_when_it_is_first_read(
        self, tmp_path: os.PathLike[str]
    ) -> None:
        async def main() -> None:
            async with self.opened(os.path.join(tmp_path, "kv")) as engine:
                engine.write_batch([Put(b"a", b"1"), Put(b"b", b"2")])
                scan = engine.scan()
                engine.write_batch([Put(b"c", b"3"), Delete(b"a"), Put(b"b", b"9")])
                assert list(scan) == [(b"a", b"1"), (b"b", b"2")]
                assert list(scan) == []

        self.run(main())

    def test_many_scans_with_bounds_keep_them_apart(self, tmp_path: os.PathLike[str]) -> None:
        async def main() -> None:
            async with self.opened(os.path.join(tmp_path, "kv")) as engine:
                keys = [b"key%06d" % number for number in range(300)]
                engine.write_batch([Put(key, key) for key in keys])
                for reverse in (False, True):
                    # Each bound is an object of its own, so that the scan alone keeps it alive.
                    scans = [
                        engine.scan(keys[n], b"key%06d" % (n + 3), reverse=reverse)
                        for n in range(290)
                    ]
                    for number, scan in enumerate(scans):
                        wanted = sorted(keys[number : number + 3], reverse=reverse)
                        assert [key for key, _ in scan] == wanted

        self.run(main())

    def test_a_range_that_ends_before_it_starts_removes_nothing_and_breaks_nothing(
        self, tmp_path: os.PathLike[str]
    ) -> None:
        async def main() -> None:
            async with self.opened(os.path.join(tmp_path, "kv")) as engine:
                engine.write_batch([Put(b"m", b"1"), DeleteRange(b"z", b"a")])
                engine.write_batch([DeleteRange(b"m", b"m"), Put(b"n", b"2")])
                assert list(engine.scan()) == [(b"m", b"1"), (b"n", b"2")]

        self.run(main())

    def test_a_closed_engine_refuses_everything_and_closes_again(
        self, tmp_path: os.PathLike[str]
    ) -> None:
        async def main() -> None:
            async with self.opened(os.path.join(tmp_path, "kv")) as engine:
                engine.write_batch([Put(b"a", b"1"), Put(b"b", b"2")])
                scan = engine.scan()
                next(scan)
                await engine.close()
                for call in (
                    lambda: engine.get(b"a"),
                    lambda: engine.write_batch([Put(b"a", b"2")]),
                    engine.scan,
                    lambda: next(scan),
                ):
                    with pytest.raises(ShuttingDown):
                        call()
                for awaitable in (
                    engine.flush(),
                    engine.multi_get([b"a", b"b"]),
                    engine.checkpoint(os.path.join(tmp_path, "copy")),
                ):
                    with pytest.raises(ShuttingDown):
                        await awaitable
                await engine.close()

        self.run(main())

    def test_a_checkpoint_needs_a_new_folder(self, tmp_path: os.PathLike[str]) -> None:
        async def main() -> None:
            async with self.opened(os.path.join(tmp_path, "kv")) as engine:
                engine.write_batch([Put(b"a", b"1")])
                await engine.checkpoint(os.path.join(tmp_path, "copy"))
                with pytest.raises(AlreadyExists):
                    await engine.checkpoint(os.path.join(tmp_path, "copy"))

        self.run(main())
