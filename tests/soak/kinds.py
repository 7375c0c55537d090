"""What one seed does, by kind: simulations, models, crash images, fuzz, real faults.

The amounts per seed are balanced so that about 24,000 seeds reach every long figure.
"""

import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import msgspec

from raftwood.testing import SwarmProfile, fuzz
from tests.damage.matrix import cells, run_cell
from tests.damage.matrix import command as command_of_cell
from tests.kits.capture.world import run_world as run_capture
from tests.kits.clogs.health_model import run as run_clogs_ha
from tests.kits.clogs.shipping_model import run as run_clogs_shipping
from tests.kits.clogs.simulation import run_clogs
from tests.kits.clogs.simulation.streams import run_streams as run_clogs_streams
from tests.kits.clogs.tail.tail_world import run_world as run_tailer
from tests.kits.disk.images import FolderImages, LogImages
from tests.kits.disk.store_lives import FAILING, run_lives
from tests.kits.dlog.images import BookieImages
from tests.kits.dlog.ledger_model import run as run_ledger_model
from tests.kits.dlog.ledgers import run as run_ledger
from tests.kits.dlog.log_model import run as run_dlog_model
from tests.kits.dlog.owners import run_owners
from tests.kits.dlog.simulation import run_dlog
from tests.kits.fuzz import TARGETS
from tests.kits.loghub.group_model.world import run as run_group_model
from tests.kits.loghub.groups.world import run_groups as run_group_gateways
from tests.kits.loghub.leases import run as run_leases
from tests.kits.loghub.leases.scale import balance
from tests.kits.loghub.simulation.world import choose_plan as choose_hub_plan
from tests.kits.loghub.simulation.world import run_hub
from tests.kits.loghub.storm import run_hub_storm
from tests.kits.logservice.churn import run_churn
from tests.kits.logservice.hakeeper_model.world import run as run_hakeeper
from tests.kits.logservice.simulation.world import choose_plan, run_logs
from tests.kits.logservice.storm import run_storm
from tests.kits.pipeline.storm import run_pipeline_matrix
from tests.kits.raft.damaged_stores import DAMAGES, MODES, run_damage
from tests.kits.raft.hosts.cluster import Cluster, choose_cluster, run_hosts
from tests.kits.raft.model.world import run as run_raft
from tests.kits.raft.repairs import run_repairs
from tests.kits.raft.session_model import run as run_sessions
from tests.kits.raft.snapshot_images import SnapshotImages
from tests.kits.raft.storm import run_storm as run_raft_storm
from tests.kits.testing.toy.cluster import run_toy
from tests.kits.zeppelin.images import NodeImages
from tests.kits.zeppelin.meta.world.moving import move_through
from tests.kits.zeppelin.meta.world.world import World, live_through
from tests.kits.zeppelin.simulation import run as run_zeppelin
from tests.kits.zeppelin.simulation.doubling import run_behind, run_doubling
from tests.kits.zeppelin.simulation.many_calls import run_client
from tests.kits.zeppelin.simulation.moving import run_moving
from tests.kits.zeppelin.simulation.reading import run_reading
from tests.kits.zeppelin.simulation.steps import Who, failures_of, run_failures
from tests.kits.zeppelin.split_images import SplitImages

DAMAGE_SHARES = 24
TWICE_EVERY = 10
"""One seed of so many is run twice."""
IMAGES = 50
FUZZ_INPUTS = 6_000
RAFT_EVENTS = 40_000
HAKEEPER_EVENTS = 40_000
GROUP_EVENTS = 4_000
DLOG_EVENTS = 40_000
CLOGS_HA_EVENTS = 100_000
CLOGS_SHIPPING_EVENTS = 60_000
LEASE_RUNS = 5
SCALE_EVERY = 500
"""One seed of so many shares 3,000 shards among 200 workers."""
CAPTURE_RUNS = 20
ZEPPELIN_PACE = 20.0
LEDGER_EVENTS = 40_000
HOSTS_FAULTS_S = 120.0
FLIPS_FAULTS_S = 30.0
SESSION_ENTRIES = 30_000
PROCESSES_EVERY = 500
"""One seed of so many, for real processes take real time."""
REAL_FAULTS = 12
REAL_STORM_S = 10.0
REAL_CHANGES = 4
"""Of members, each with a kill."""
LOGS_FAULTS_S = 40.0
HUB_FAULTS_S = 30.0

Counts = dict[str, float]


class Failure(msgspec.Struct, frozen=True):
    """A seed that failed, and the command that repeats it."""

    kind: str
    seed: int
    error: str
    command: str


class Result(msgspec.Struct, frozen=True):
    """What a seed came to; a seed that failed counts nothing."""

    kind: str
    seed: int
    counts: Counts = {}
    failure: Failure | None = None


def command(kind: str, seed: int) -> str:
    return f".venv/bin/python -m tests.soak {kind} --seed {seed}"


def _toy(seed: int) -> Counts:
    twice = seed % TWICE_EVERY == 0
    report = run_toy(seed, twice=twice)
    outcome = report.result
    runs = 2 if twice else 1
    return {
        "toy: seeds": 1,
        "toy: seeds run twice, hash equal": int(twice),
        "toy: simulated hours": outcome.faults_s / 3600 if outcome.is_under_load else 0.0,
        "toy: all virtual hours": runs * report.virtual_seconds / 3600,
        "toy: steps": runs * report.steps,
        "toy: operations": outcome.operations,
    }


def _hosts(seed: int) -> Counts:
    twice = seed % TWICE_EVERY == 0
    report = run_hosts(seed, choose_cluster(seed, faults_s=HOSTS_FAULTS_S), twice=twice)
    outcome = report.result
    runs = 2 if twice else 1
    return {
        "raft hosts: seeds": 1,
        "raft hosts: seeds run twice, hash equal": int(twice),
        "raft hosts: simulated hours": outcome.faults_s / 3600 if outcome.is_under_load else 0.0,
        "raft hosts: all virtual hours": runs * report.virtual_seconds / 3600,
        "raft hosts: steps": runs * report.steps,
        "raft hosts: operations": outcome.operations,
        "raft hosts: terms": outcome.terms,
        "raft hosts: snapshots restored": outcome.snapshots_restored,
    }


def _logs(seed: int) -> Counts:
    twice = seed % TWICE_EVERY == 0
    report = run_logs(seed, choose_plan(seed, faults_s=LOGS_FAULTS_S), twice=twice)
    outcome = report.result
    runs = 2 if twice else 1
    return {
        "log stores: seeds": 1,
        "log stores: seeds run twice, hash equal": int(twice),
        "log stores: simulated hours": outcome.faults_s / 3600,
        "log stores: steps": runs * report.steps,
        "log stores: operations": outcome.operations,
        "log stores: records acknowledged": outcome.acked,
        "log stores: terms": outcome.terms,
    }


def _hub(seed: int) -> Counts:
    twice = seed % TWICE_EVERY == 0
    report = run_hub(seed, choose_hub_plan(seed, faults_s=HUB_FAULTS_S), twice=twice)
    outcome = report.result
    runs = 2 if twice else 1
    return {
        "gateways: seeds": 1,
        "gateways: seeds run twice, hash equal": int(twice),
        "gateways: simulated hours": outcome.faults_s / 3600,
        "gateways: steps": runs * report.steps,
        "gateways: records acknowledged": outcome.acked,
        "gateways: changes of logstores": outcome.changes,
        "gateways: crashes between two steps": outcome.crashes,
    }


def _images(seed: int) -> Counts:
    return {
        "crash images: log": LogImages(seed).check(limit=IMAGES),
        "crash images: folder": FolderImages(seed).check(limit=IMAGES),
        "crash images: snapshots": SnapshotImages(seed).check(limit=IMAGES),
        "crash images: bookies": BookieImages(seed).check(limit=IMAGES),
        "crash images: nodes of Zeppelin": NodeImages(seed).check(limit=IMAGES),
        "crash images: splits of Zeppelin": SplitImages(seed).check(limit=IMAGES),
    }


def _fuzz(seed: int) -> Counts:
    return {
        f"fuzz inputs: {name}": fuzz(target, seeds, count=FUZZ_INPUTS, seed=seed).inputs
        for name, (target, seeds) in TARGETS.items()
    }


def _processes(seed: int) -> Counts:
    if seed % PROCESSES_EVERY != PROCESSES_EVERY - 1:
        return {}
    with tempfile.TemporaryDirectory() as folder:
        counts = run_storm(Path(folder), seed, REAL_FAULTS)
    with tempfile.TemporaryDirectory() as folder:
        counts += run_churn(Path(folder), seed, REAL_CHANGES)
    with tempfile.TemporaryDirectory() as folder:
        raft_counts = run_raft_storm(Path(folder), seed, REAL_STORM_S)
    counts += Counter({f"raft hosts: {name}": count for name, count in raft_counts.items()})
    with tempfile.TemporaryDirectory() as folder:
        hub_counts = run_hub_storm(Path(folder), seed, REAL_FAULTS)
    counts += Counter({f"gateways: {name}": count for name, count in hub_counts.items()})
    with tempfile.TemporaryDirectory() as folder:
        spark_counts = run_pipeline_matrix(Path(folder), seed)
    counts += Counter({f"pipeline: {name}": count for name, count in spark_counts.items()})
    return {f"real faults: {name}": count for name, count in counts.items()}


def _stores(seed: int) -> Counts:
    lives = [run_lives(seed), run_lives(seed, FAILING)]
    for kind in DAMAGES:
        run_damage(kind, MODES[seed % len(MODES)], seed)
    flipping = Cluster(faults_s=FLIPS_FAULTS_S, flip_every_s=3.0)
    profile = SwarmProfile(seed=seed, every_s={"kill": 10.0, "reset": 5.0})
    return {
        "stores: writes acked through crashes": sum(life.acks for life in lives),
        "stores: damaged files": len(DAMAGES),
        "stores: writes acked through repairs": run_repairs(seed),
        "stores: flipped bits": run_hosts(seed, flipping, profile=profile).result.flips,
        "stores: entries of sessions": sum(run_sessions(seed, SESSION_ENTRIES).values()),
    }


def _damage(seed: int) -> Counts:
    found: Counter[str] = Counter()
    # So many seeds run every cell once.
    for cell in list(cells())[seed % DAMAGE_SHARES :: DAMAGE_SHARES]:
        seen = run_cell(cell, seed)
        if seen.outcome.is_failure:
            raise AssertionError(f"{cell}: {seen.reason}; repeat: {command_of_cell(cell, seed)}")
        found[f"damaged files: {cell.process}s, {seen.outcome}"] += 1
    return dict(found)


def _raft(seed: int) -> Counts:
    return {"raft: sans-io events": run_raft(seed, RAFT_EVENTS).events}


def _hakeeper(seed: int) -> Counts:
    return {"hakeeper: sans-io events": run_hakeeper(seed, HAKEEPER_EVENTS).events}


def _groups(seed: int) -> Counts:
    report = run_group_gateways(seed)
    return {
        "consumer groups: sans-io events": run_group_model(seed, GROUP_EVENTS).events,
        "consumer groups: runs of gateways": 1,
        "consumer groups: simulated hours": report.faults_s / 3600,
        "consumer groups: records read": report.put,
    }


def _ledger_model(seed: int) -> Counts:
    return {"ledgers: sans-io events": run_ledger_model(seed, LEDGER_EVENTS).events}


def _ledgers(seed: int) -> Counts:
    twice = seed % TWICE_EVERY == 0
    report = run_ledger(seed, twice=twice, wipes=seed % 4)
    return {
        "ledgers: runs of the quorum client": 1,
        "ledgers: simulated hours": report.result.faults_s / 3600,
        "ledgers: seeds run twice, hash equal": int(twice),
        "ledgers: entries acknowledged": report.result.acked,
    }


def _leases(seed: int) -> Counts:
    reports = [run_leases(seed * LEASE_RUNS + number) for number in range(LEASE_RUNS)]
    is_large = seed % SCALE_EVERY == SCALE_EVERY - 1
    if is_large:
        balance(shards=3_000, first=150, workers=200)
    return {
        "leases: runs": LEASE_RUNS,
        "leases: runs with many workers": int(is_large),
        "leases: simulated hours": sum(report.faults_s for report in reports) / 3600,
        "leases: steals": sum(report.steals for report in reports),
        "leases: records processed": sum(report.processed for report in reports),
    }


def _dlog(seed: int) -> Counts:
    twice = seed % TWICE_EVERY == 0
    report = run_dlog(seed, twice=twice)
    return {
        "logs of ledgers: sans-io events": run_dlog_model(seed, DLOG_EVENTS).events,
        "logs of ledgers: seeds": 1,
        "logs of ledgers: seeds run twice, hash equal": int(twice),
        "logs of ledgers: steps of contending writers": report.steps,
        "logs of ledgers: messages acknowledged": report.acked,
        "logs of ledgers: take-overs": report.takeovers,
        "logs of ledgers: crashes": report.crashes,
    }


def _owners(seed: int) -> Counts:
    twice = seed % TWICE_EVERY == 0
    report = run_owners(seed, twice=twice)
    return {
        "owners of logs: seeds": 1,
        "owners of logs: seeds run twice, hash equal": int(twice),
        "owners of logs: simulated hours": report.faults_s / 3600,
        "owners of logs: killed or stopped": report.faults,
        "owners of logs: messages acknowledged": report.acked,
    }


def _zeppelin(seed: int) -> Counts:
    twice = seed % TWICE_EVERY == 0
    report = run_zeppelin(seed, pace=ZEPPELIN_PACE if seed % 2 else 1.0, twice=twice)
    return {
        "zeppelin: seeds": 1,
        "zeppelin: simulated hours": report.result.faults_s / 3600,
        "zeppelin: seeds run twice, hash equal": int(twice),
        "zeppelin: writes called done": report.result.done,
        "zeppelin: failovers and hand-overs": report.result.failovers + report.result.handovers,
        "zeppelin: binlogs rewound": report.result.rewinds,
        "zeppelin: whole copies": report.result.copies,
    }


def _zeppelin_client(seed: int) -> Counts:
    twice = seed % TWICE_EVERY == 0
    outcome = run_client(seed, twice=twice).result
    return {
        "zeppelin's client: seeds": 1,
        "zeppelin's client: seeds run twice, hash equal": int(twice),
        "zeppelin's client: simulated hours": outcome.faults_s / 3600,
        "zeppelin's client: calls": outcome.calls,
    }


def _reading(seed: int) -> Counts:
    twice = seed % TWICE_EVERY == 0
    counts = run_reading(seed, twice=twice).result
    return {
        "zeppelin's reads: seeds": 1,
        "zeppelin's reads: seeds run twice, hash equal": int(twice),
        "zeppelin's reads: answered by masters": counts["reads"],
        "zeppelin's reads: answered by slaves": counts["reads of slaves"],
    }


def _zeppelin_meta(seed: int) -> Counts:
    worlds = [live_through(seed), live_through(seed, more_faults=World.leave), move_through(seed)]
    return {
        "zeppelin's meta server: worlds": len(worlds),
        "zeppelin's meta server: writes": sum(world.writes for world in worlds),
    }


def _doubling(seed: int) -> Counts:
    outcome = run_doubling(seed)
    run_behind(seed)
    return {"doubling: seeds": 1, "doubling: writes called done": outcome.done}


def _migrations(seed: int) -> Counts:
    twice = seed % TWICE_EVERY == 0
    moved = run_moving(seed, twice=twice).result
    calm = run_moving(seed, is_calm=True).result
    who = [*Who][seed % len(Who)]
    failures = failures_of(who, is_of_master=seed // len(Who) % 2 == 0)
    return {
        "migrations: seeds": 1,
        "migrations: seeds run twice, hash equal": int(twice),
        "migrations: done": moved.moved + calm.moved,
        "migrations: cancelled": moved.cancelled + calm.cancelled,
        "migrations: failures at a step": run_failures(failures, seed=seed).result,
        "migrations: writes called done": moved.done + calm.done,
        "migrations: failovers and hand-overs": moved.failovers + moved.handovers + calm.handovers,
    }


def _clogs_ha(seed: int) -> Counts:
    report = run_clogs_ha(seed, CLOGS_HA_EVENTS)
    return {
        "clogs: sans-io events of health": report.events,
        "clogs: servers isolated": report.isolations,
    }


def _clogs(seed: int) -> Counts:
    twice = seed % TWICE_EVERY == 0
    report = run_clogs(seed, twice=twice)
    events = run_clogs_shipping(seed, CLOGS_SHIPPING_EVENTS).events
    return {
        "clogs: seeds": 1,
        "clogs: seeds run twice, hash equal": int(twice),
        "clogs: sans-io events of shipping": events,
        "clogs: lines in logstores": run_clogs_streams(seed).result[0],
        "clogs: simulated hours": report.result.faults_s / 3600,
        "clogs: lines promised": report.result.promised,
        "clogs: lines resumed": report.result.resumed,
        "clogs: lines sent again": report.result.retried,
        "clogs: lines dropped": report.result.dropped,
        "clogs: faults": report.result.faults,
    }


def _tailing(seed: int) -> Counts:
    return {"tailed files: seeds": 1, "tailed files: lines": run_tailer(seed).log.lines()}


def _capture(seed: int) -> Counts:
    for number in range(CAPTURE_RUNS):
        run_capture(seed * CAPTURE_RUNS + number)
    return {"capture: runs": CAPTURE_RUNS}


KINDS: dict[str, Callable[[int], Counts]] = {
    "toy": _toy,
    "hosts": _hosts,
    "logs": _logs,
    "hub": _hub,
    "stores": _stores,
    "damage": _damage,
    "raft": _raft,
    "hakeeper": _hakeeper,
    "groups": _groups,
    "leases": _leases,
    "ledger_model": _ledger_model,
    "ledgers": _ledgers,
    "dlog": _dlog,
    "owners": _owners,
    "zeppelin": _zeppelin,
    "zeppelin_client": _zeppelin_client,
    "reading": _reading,
    "zeppelin_meta": _zeppelin_meta,
    "doubling": _doubling,
    "migrations": _migrations,
    "clogs": _clogs,
    "clogs_ha": _clogs_ha,
    "tailing": _tailing,
    "capture": _capture,
    "images": _images,
    "processes": _processes,
    "fuzz": _fuzz,
}


def run_seed(kind: str, seed: int) -> Result:
    """Run one seed of one kind; whatever it raises is a finding, not the end of the soak."""
    try:
        return Result(kind, seed, KINDS[kind](seed))
    except Exception as error:
        notes = getattr(error, "__notes__", [])
        text = "\n".join([f"{type(error).__name__}: {error}", *notes])
        return Result(kind, seed, failure=Failure(kind, seed, text, command(kind, seed)))


LONG_RUN: dict[str, float] = {
    "toy: simulated hours": 90,
    "toy: seeds run twice, hash equal": 500,
    "raft hosts: simulated hours": 100,
    "raft hosts: seeds run twice, hash equal": 300,
    "log stores: simulated hours": 20,
    "log stores: seeds run twice, hash equal": 200,
    "gateways: simulated hours": 20,
    "gateways: seeds run twice, hash equal": 200,
    "raft: sans-io events": 1_000_000_000,
    "hakeeper: sans-io events": 1_000_000_000,
    "consumer groups: sans-io events": 100_000_000,
    "ledgers: sans-io events": 1_000_000_000,
    "clogs: sans-io events of health": 1_000_000_000,
    "clogs: sans-io events of shipping": 1_000_000_000,
    "leases: runs": 100_000,
    "crash images: log": 100_000,
    "crash images: folder": 100_000,
    "crash images: snapshots": 100_000,
    **{f"fuzz inputs: {name}": 100_000_000 for name in TARGETS},
}
"""What a long run comes to; short ones add up to it."""
