"""Consumer groups of several gateways in virtual time: consumers that keep to their deadlines, a
metastore that is slow, and checks of what is read by whom, when and in what order.
"""

from tests.kits.loghub.groups.world import Report, Weather, run_groups

__all__ = ["Report", "Weather", "run_groups"]
