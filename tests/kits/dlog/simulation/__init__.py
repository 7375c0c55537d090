"""Writers that contend for one log, with crashes at every step and answers that are lost."""

from tests.kits.dlog.simulation.world import Plan, Report, World, choose_plan, run_dlog, run_world

__all__ = ["Plan", "Report", "World", "choose_plan", "run_dlog", "run_world"]
