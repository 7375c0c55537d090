"""Writers that contend for one log, with crashes at every step and answers that are lost."""

from tests.simulation.dlog.world import Plan, Report, choose_plan, run_dlog

__all__ = ["Plan", "Report", "choose_plan", "run_dlog"]
