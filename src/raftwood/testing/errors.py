"""Exceptions that end a simulation or a simulated process; none of them crosses a wire."""


class SimulationError(Exception):
    """The simulation cannot go on, or the simulated code broke a rule."""


class Deadlock(SimulationError):
    """No code can run and no timer is set: the awaited event will never happen."""


class Overrun(SimulationError):
    """The bound on virtual time or on steps was reached."""


class Leaked(SimulationError):
    """A task, a resource or an unreported error was left at the end."""


class NotDeterministic(SimulationError):
    """Two runs of one seed differed."""


class ProcessEnded(BaseException):
    """Unwinds the code that ended its own process.

    A `BaseException`, so that `except Exception` does not hold it back. Code that runs while it
    passes (a `finally`) belongs to a dead process: whatever it sends, writes or schedules is
    dropped.
    """


def refuse(what: str, **arguments: object) -> None:
    """Raises for the first argument that was given: ignoring it would test something else."""
    for name, value in arguments.items():
        if value is not None and value is not False and value != 0:
            raise NotImplementedError(f"{what}: {name}={value!r} is not simulated; leave it out")
