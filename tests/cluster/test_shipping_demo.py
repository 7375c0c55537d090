"""The part of the whole demo that ships: real web servers, real receivers, one of them killed."""

from pathlib import Path

import pytest

from raftwood.app.demo.receivers import OTHERS, Target
from raftwood.app.demo.shipping import Shipping
from raftwood.app.demo.shipping_figures import shipping_checks
from raftwood.app.demo.shipping_plan import ShippingPlan
from raftwood.app.demo.standalone_process import StandaloneProcess
from raftwood.app.demo.story import StoryListener
from raftwood.app.demo.web_files import stored_files
from raftwood.loghub.model import LogKind
from raftwood.pipeline.read import read

TARGET = Target("web", "access")
PLAN = ShippingPlan(servers=2, lines=4_000, lines_per_minute=1_000, seed=11, seconds=3.0)


@pytest.mark.slow
def test_web_servers_ship_every_line_once_and_in_order_while_a_receiver_is_killed(
    tmp_path: Path,
) -> None:
    told: list[str] = []
    listener = StoryListener(on_step=told.append, on_progress=lambda *_: None)
    folder = str(tmp_path)
    with (
        StandaloneProcess(folder, TARGET.flags()) as standalone,
        standalone.client() as client,
    ):
        client.create_project("web")
        client.create_logstore("web", "access", shard_count=2, log=LogKind.DLOG)
        with Shipping(folder, standalone.parts, PLAN, TARGET, listener) as shipping:
            _, killed = shipping.ship_and_kill(3_500)
            shipping.ship(500)
            shipped = shipping.shipped(killed)
            truth, made = shipping.known()
        part = standalone.loghub
        access = {
            "gateways": part.native,
            "access_key": part.access_key_id,
            "access_secret": part.access_key_secret,
        }
        found = stored_files(read, "web", "access", access)
    assert truth.total.requests == PLAN.lines
    checks = shipping_checks(shipped, lines=PLAN.lines, made=made, found=found)
    assert [each for each in checks if not each.held] == []
    assert killed.receiver in OTHERS
    assert killed.files > 0
    assert killed.acked_again > 0
    assert sum(each.acked for each in shipped.receivers.values()) == PLAN.lines
    assert any("is killed with -9" in each for each in told)
    assert standalone.exit_status == 0
