"""A log store's process tells its metrics over HTTP."""

import asyncio
import time
from pathlib import Path

from tests.kits.logservice.processes import WAIT_S_MAX, log_stores
from tests.kits.ports import LOCAL, free_ports
from tests.kits.running import run
from tests.kits.server.running import ask
from tests.unit.test_dashboards import logservice_metrics, series_of

TOKEN = "0123456789" * 4


def test_a_log_store_tells_all_its_metrics_over_http(tmp_path: Path) -> None:
    wanted = series_of(logservice_metrics())
    text = run(scraped(tmp_path, wanted))
    assert wanted - told(text) == set()
    assert 'raftwood_logservice_appends_total{shard="1",store="1"} 100.0' in text
    assert 'raftwood_logservice_read_records_total{shard="1",store="1"} 100.0' in text
    assert 'raftwood_hakeeper_state{state="running",store="1"} 1.0' in text
    assert 'raftwood_hakeeper_stores{state="up",store="1"} 1.0' in text


def told(text: str) -> set[str]:
    """The names of series."""
    return {line.partition("{")[0] for line in text.splitlines() if not line.startswith("#")}


async def scraped(folder: Path, wanted: set[str]) -> str:
    """The metrics of a store after some work, once it tells all or had the time to."""
    address = f"{LOCAL}:{free_ports(1)[0]}"
    settings = {"http.listen": address, "secrets.metrics": TOKEN}
    async with log_stores(folder, first=1, settings=settings) as stores:
        await stores.start()
        await stores.runs()
        client = await stores.client()
        lsns = await client.append_many([b"record"] * 100)
        await client.read(lsns[0])
        deadline = time.monotonic() + WAIT_S_MAX
        ready, text = (0, ""), ""
        # Some are told of only when the store has looked at its shards and its disk.
        while (ready != (200, "ok\n") or wanted - told(text)) and time.monotonic() < deadline:
            await asyncio.sleep(0.1)
            ready = await asyncio.to_thread(ask, address, "/readyz")
            status, text = await asyncio.to_thread(ask, address, "/metrics", token=TOKEN)
            assert status == 200
        assert ready == (200, "ok\n")
        return text
