"""Finds the seeds that show planted bugs soonest, for their `first`.

python -m tests.kits.seeds tests.kits.loghub.simulation.mutants --above 0.5 --seeds 100

A change of what a simulation does moves the seeds that show a bug. Another seed shows it still,
but each run of the suite pays for all those before it. For each mutant of a module whose `first`
does not show it, or takes more than `--above` seconds of CPU, this prints the cheapest one.
"""

import argparse
import importlib
import os
import re
import signal
import sys
import traceback

from tests.kits.models import Mutant

_CPU_S_MAX = 10.0
_SHOWN, _HIDDEN = 0, 1


def cpu_to_show(mutant: Mutant, seed: int, cpu_s_max: float) -> float | None:
    """What it takes to show the bug by this very seed; None if it takes more than `cpu_s_max`.

    In a process of its own, which the kernel ends in time.
    """
    child = os.fork()
    if child == 0:
        signal.signal(signal.SIGPROF, signal.SIG_DFL)
        signal.setitimer(signal.ITIMER_PROF, cpu_s_max)
        try:
            os._exit(_SHOWN if _shows(mutant, seed) else _HIDDEN)
        except BaseException:
            traceback.print_exc()
            os._exit(_HIDDEN)
    _, status, used = os.wait4(child, 0)
    return used.ru_utime + used.ru_stime if status == _SHOWN else None


def _shows(mutant: Mutant, seed: int) -> bool:
    try:
        with mutant.plant():
            mutant.run(seed)
    except mutant.catches as caught:
        return bool(re.search(mutant.harm, str(caught)))
    return False


def main(arguments: list[str]) -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.kits.seeds")
    parser.add_argument("module", help="where MUTANTS is")
    parser.add_argument("--seeds", type=int, default=100, help="how many are tried")
    parser.add_argument("--above", type=float, default=0.5, help="what is cheap, in seconds of CPU")
    options = parser.parse_args(arguments)
    mutants: dict[str, Mutant] = importlib.import_module(options.module).MUTANTS
    for name, mutant in mutants.items():
        now = cpu_to_show(mutant, mutant.first, _CPU_S_MAX)
        if now is not None and now < options.above:
            continue
        seed, best = (None, _CPU_S_MAX) if now is None else (mutant.first, now)
        for other in range(options.seeds):
            used = cpu_to_show(mutant, other, best)
            if used is not None and used < best:
                seed, best = other, used
        was = "does not show it" if now is None else f"takes {now:.2f} s"
        found = "no other does" if seed is None else f"first={seed} takes {best:.2f} s"
        print(f"{name}: first={mutant.first} {was}; {found}", flush=True)


if __name__ == "__main__":
    main(sys.argv[1:])
