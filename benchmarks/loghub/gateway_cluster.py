"""Three stores with a gateway in front of them."""

import time

from benchmarks.harness.cluster import Cluster, ClusterFailed
from benchmarks.loghub.loghub_system import LogHubSystem, ready_file

READY_TIMEOUT_S = 30.0
READY_POLL_S = 0.02


class GatewayCluster(Cluster):
    """The gateway is the process behind the stores'."""

    def start(self) -> float:
        assert isinstance(self.system, LogHubSystem)
        began = time.monotonic()
        super().start()
        self._run(self.system.gateway_command(self.layout))
        while not ready_file(self.layout).exists():
            if time.monotonic() - began > READY_TIMEOUT_S:
                raise ClusterFailed("the gateway is not ready")
            time.sleep(READY_POLL_S)
        return time.monotonic() - began
