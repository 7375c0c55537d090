"""A test kit: a whole cluster in one process, in virtual time, all of it from a seed.

Unmodified asyncio code runs on a simulated network, disk and clock that fail in the ways real ones
do; equal seeds give equal runs. Beside it stand crash images (recover from every moment of a
store's life), histories with checkers, swarm faults and a fuzzer.

May import `base`, msgspec and xxhash; only tests use it. Start with `runner` (run a scenario), then
`loop` and `nodes` (processes and crashes), `network` and `sockets`, `file_system` and
`disk`. `crash_images`, `swarm`, `history`, `checkers` and `fuzzer` each stand alone.

Code that is to be simulated takes time from the loop, and clocks, randomness and files from its
`Environment`; it uses no threads, does not iterate sets, does not order by `id()` or `hash()` and
does not use `as_completed`.
"""

from raftwood.base import files
from raftwood.base.environment import Environment
from raftwood.testing.checkers import CheckTooLarge, Violation, check_log, check_registers
from raftwood.testing.crash_images import (
    CrashImage,
    ImageRunner,
    ImmediateFiles,
    Journal,
    RecordingFiles,
    crash_images,
)
from raftwood.testing.disk import SLOW_DISK, DiskProfile, SimulatedDisk, SimulatedFiles
from raftwood.testing.errors import (
    Deadlock,
    Leaked,
    NotDeterministic,
    Overrun,
    ProcessEnded,
    SimulationError,
)
from raftwood.testing.file_system import FileSystem
from raftwood.testing.fuzzer import FuzzFinding, FuzzReport, Mutator, fuzz
from raftwood.testing.history import Event, History, classify, read_history, write_history
from raftwood.testing.kv import SimulatedKvDisk, SimulatedKvEngine
from raftwood.testing.loop import SimulatedLoop
from raftwood.testing.network import Network, NetworkProfile
from raftwood.testing.nodes import PROCESS, NodeClock, Process, SimulatedNode
from raftwood.testing.runner import (
    Machine,
    Program,
    Simulation,
    SimulationReport,
    assert_deterministic,
    simulate,
    simulated_environment,
)
from raftwood.testing.swarm import DISK_ERRORS, FAULTS, FaultInjector, SwarmProfile

__all__ = [
    "DISK_ERRORS",
    "FAULTS",
    "PROCESS",
    "SLOW_DISK",
    "CheckTooLarge",
    "CrashImage",
    "Deadlock",
    "DiskProfile",
    "Environment",
    "Event",
    "FaultInjector",
    "FileSystem",
    "FuzzFinding",
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
    "NodeClock",
    "NotDeterministic",
    "Overrun",
    "Process",
    "ProcessEnded",
    "Program",
    "RecordingFiles",
    "SimulatedDisk",
    "SimulatedFiles",
    "SimulatedKvDisk",
    "SimulatedKvEngine",
    "SimulatedLoop",
    "SimulatedNode",
    "Simulation",
    "SimulationError",
    "SimulationReport",
    "SwarmProfile",
    "Violation",
    "assert_deterministic",
    "check_log",
    "check_registers",
    "classify",
    "crash_images",
    "files",
    "fuzz",
    "read_history",
    "simulate",
    "simulated_environment",
    "write_history",
]
