"""The base of every model and simulation that proves itself by planted bugs.

A check that cannot fail proves nothing. So each model has mutants: the same run with one rule
broken. A mutant must be caught, and the same run without the bug must do no harm.

    MUTANTS = {
        "acks before sync": Mutant(run_in_storms, replaced(Writer, sync=skip), first=7),
    }

    @pytest.mark.parametrize("name", MUTANTS)
    def test_a_planted_bug_is_caught(name: str) -> None:
        MUTANTS[name].catch()
"""

import itertools
import re
from collections.abc import Callable, Coroutine, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, TypeVar
from unittest import mock

from raftwood.base.errors import RaftwoodError
from raftwood.testing import (
    Simulation,
    SimulationError,
    SimulationReport,
    assert_deterministic,
    simulate,
)

Result = TypeVar("Result")
Plant = Callable[[], AbstractContextManager[object]]
"""Plants a bug for as long as the block lasts."""

CATCHES = (AssertionError, SimulationError, RaftwoodError, TimeoutError)
"""What counts as caught: a checker's violation, an invariant of the code's own, a stuck run."""
SEEDS_MAX = 200
_SHOWN_ERRORS_MAX = 3


class Violation(AssertionError):
    """The run broke a promise: which one, and by what."""

    def __str__(self) -> str:
        return ": ".join(map(str, self.args))


@dataclass(frozen=True)
class Mutant:
    """A bug, and the run that shows it."""

    run: Callable[[int], object]
    """Runs the model by a seed, in the weather that shows the bug soon."""
    plant: Plant = nullcontext
    first: int = 0
    """The seed to begin with: the bug showed there before."""
    catches: tuple[type[BaseException], ...] = CATCHES
    harm: str = ""
    """A pattern of what the catch says: any other failure proves nothing of the check."""

    def catch(self, seeds_max: int = SEEDS_MAX) -> BaseException:
        """What the bug raises, at `first` or else at the lowest seed that shows it."""
        others = []
        for seed in promising(self.first, seeds_max):
            try:
                with self.plant():
                    self.run(seed)
            except self.catches as caught:
                if re.search(self.harm, str(caught)):
                    return caught
                others.append(f"{seed}: {caught}")
        raise Uncaught(f"{seeds_max} seeds did not show the planted bug; other failures: {others}")


class Uncaught(Exception):
    """No seed showed a planted bug. Not an assertion: a mutant must never catch it."""


def weathers(mutants: Mapping[str, Mutant]) -> list[str]:
    """One mutant for each of their different runs: to show that these do no harm without a bug."""
    return list({mutant.run: name for name, mutant in mutants.items()}.values())


def promising(first: int, count: int) -> Iterator[int]:
    """All seeds below `count`, beginning with one that showed something before."""
    yield first
    for seed in range(count):
        if seed != first:
            yield seed


def replaced(owner: object, **attributes: object) -> Plant:
    """Replaces attributes of a class or a module."""

    @contextmanager
    def plant() -> Iterator[None]:
        with ExitStack() as stack:
            for name, value in attributes.items():
                stack.enter_context(mock.patch.object(owner, name, value))
            yield

    return plant


def together(*plants: Plant) -> Plant:
    """A bug that is in several places."""

    @contextmanager
    def plant() -> Iterator[None]:
        with ExitStack() as stack:
            for each in plants:
                stack.enter_context(each())
            yield

    return plant


def repeat_command(kind: str) -> str:
    """How a seed of one kind of `make soak` is run again."""
    return f".venv/bin/python -m tests.soak {kind} --seed {{seed}}"


@contextmanager
def repeatable(kind: str, seed: int) -> Iterator[None]:
    """Whatever fails in a model without a simulated loop says how to repeat it."""
    try:
        yield
    except CATCHES as error:
        error.add_note(f"repeat: {repeat_command(kind).format(seed=seed)}")
        raise


def run_scenario(
    kind: str,
    seed: int,
    scenario: Callable[[Simulation], Coroutine[Any, Any, Result]],
    *,
    twice: bool = False,
    **options: Any,
) -> SimulationReport[Result]:
    """Run a scenario once, or twice with the same hash; a failure says how to repeat it."""

    async def telling(simulation: Simulation) -> Result:
        try:
            return await scenario(simulation)
        except (TimeoutError, AssertionError) as error:
            # What keeps a node down says more than that it is down.
            for found in simulation.loop.errors[:_SHOWN_ERRORS_MAX]:
                error.add_note(found)
            raise

    run = assert_deterministic if twice else simulate
    return run(seed, telling, repeat_command=repeat_command(kind), **options)


def run_seeds(first: int, run: Callable[[int], float], *, until: float) -> None:
    """Run seed after seed until what they really did adds up to a floor."""
    done = 0.0
    for seed in itertools.count(first):
        share = run(seed)
        assert share > 0, f"seed {seed} did nothing"
        done += share
        if done >= until:
            return
