"""Shippers and receivers as they run, on simulated machines that fail; see `world`."""

from tests.kits.clogs.simulation.notebook import Harm, Violation
from tests.kits.clogs.simulation.world import Plan, choose_plan, run_clogs

__all__ = ["Harm", "Plan", "Violation", "choose_plan", "run_clogs"]
