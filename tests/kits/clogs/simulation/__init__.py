"""Shippers and receivers as they run, on simulated machines that fail; see `world`."""

from tests.kits.clogs.simulation.world import Plan, choose_plan, run_clogs

__all__ = ["Plan", "choose_plan", "run_clogs"]
