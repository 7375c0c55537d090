"""What ends a simulation or a simulated process; none of these crosses a wire."""


class SimulationError(Exception):
    """The simulation cannot go on, or what it ran broke a rule."""


class Deadlock(SimulationError):
    """Nothing can run and no timer is set: whatever is awaited will never happen."""


class Overrun(SimulationError):
    """The bound on virtual time or on steps was reached."""


class Leaked(SimulationError):
    """Something was left running, open or unreported at the end."""


class NotDeterministic(SimulationError):
    """Two runs of one seed did not do the same."""


class ProcessEnded(BaseException):
    """Unwinds the code that ended its own process.

    A `BaseException`, so that `except Exception` does not hold it back. Code that runs while it
    passes (a `finally`) belongs to a dead process: whatever it sends, writes or schedules is
    dropped.
    """


def refuse(what: str, **arguments: object) -> None:
    """Raise for the first argument that was given: ignoring it would test something else."""
    for name, value in arguments.items():
        if value is not None and value is not False and value != 0:
            raise NotImplementedError(f"{what}: {name}={value!r} is not simulated; leave it out")
