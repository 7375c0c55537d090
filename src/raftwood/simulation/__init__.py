"""A test kit: the world of a cluster in one process, in virtual time, all of it from a seed.

Unmodified asyncio code runs on a simulated network, disk and clock that fail in the ways real ones
do; equal seeds give equal runs. Beside it stand crash images (recover from every moment of a
store's life), histories with checkers, swarm faults and a fuzzer.

May import `base`, msgspec and xxhash; only tests use it. Start with `runner` (run a scenario), then
`loop` and `nodes` (who runs when, and what a crash is), `network` and `transport`, `file_system`
and `disk`. `crash_images`, `swarm`, `history`, `checkers` and `mutator` each stand alone.

Code that is to be simulated takes time from the loop, and clocks, randomness and files from its
`Environment`; it uses no threads, does not iterate sets, does not order by `id()` or `hash()` and
does not use `as_completed`.
"""

from raftwood.simulation.checkers import CheckTooLarge, Violation, check_log, check_registers
from raftwood.simulation.crash_images import (
    CrashImage,
    ImageRunner,
    ImmediateFiles,
    Journal,
    RecordingFiles,
    crash_images,
)
from raftwood.simulation.disk import SLOW_DISK, DiskProfile, SimulatedDisk, SimulatedFiles
from raftwood.simulation.environment import simulated_environment
from raftwood.simulation.errors import (
    Deadlock,
    Leaked,
    NotDeterministic,
    Overrun,
    ProcessEnded,
    SimulationError,
)
from raftwood.simulation.file_system import FileSystem
from raftwood.simulation.history import Event, History, classify, read_history, write_history
from raftwood.simulation.kv import SimulatedKvDisk, SimulatedKvEngine
from raftwood.simulation.loop import SimulatedLoop
from raftwood.simulation.mutator import Finding, FuzzReport, Mutator, fuzz
from raftwood.simulation.network import Network, NetworkProfile
from raftwood.simulation.nodes import PROCESS, Node, NodeClock, Process
from raftwood.simulation.runner import (
    Machine,
    Program,
    Report,
    Simulation,
    assert_deterministic,
    simulate,
)
from raftwood.simulation.swarm import DISK_ERRORS, FAULTS, FaultInjector, SwarmProfile

__all__ = [
    "DISK_ERRORS",
    "FAULTS",
    "PROCESS",
    "SLOW_DISK",
    "CheckTooLarge",
    "CrashImage",
    "Deadlock",
    "DiskProfile",
    "Event",
    "FaultInjector",
    "FileSystem",
    "Finding",
    "FuzzReport",
    "History",
    "ImageRunner",
    "ImmediateFiles",
    "Journal",
    "Leaked",
    "Machine",
    "Mutator",
    "Network",
    "NetworkProfile",
    "Node",
    "NodeClock",
    "NotDeterministic",
    "Overrun",
    "Process",
    "ProcessEnded",
    "Program",
    "RecordingFiles",
    "Report",
    "SimulatedDisk",
    "SimulatedFiles",
    "SimulatedKvDisk",
    "SimulatedKvEngine",
    "SimulatedLoop",
    "Simulation",
    "SimulationError",
    "SwarmProfile",
    "Violation",
    "assert_deterministic",
    "check_log",
    "check_registers",
    "classify",
    "crash_images",
    "fuzz",
    "read_history",
    "simulate",
    "simulated_environment",
    "write_history",
]
