"""The checkers of histories: `check_registers` and `check_log` answer a `Violation` or None."""

from raftwood.simulation.logs import check_log
from raftwood.simulation.registers import CheckTooLarge, Violation, check_registers

__all__ = ["CheckTooLarge", "Violation", "check_log", "check_registers"]
