"""OpenTelemetry's own SDK exports its logs to a gateway."""

import asyncio
import logging
from pathlib import Path
from typing import Any

import pytest
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http._log_exporter import OTLPLogExporter
from opentelemetry.sdk._logs import LoggerProvider, LoggingHandler
from opentelemetry.sdk._logs.export import BatchLogRecordProcessor
from opentelemetry.sdk.resources import Resource

from tests.kits.loghub.ways_in import LOGSTORE, ways_in_kit
from tests.kits.running import run


def send(url: str, secret: str, compression: Compression) -> None:
    provider = LoggerProvider(
        resource=Resource.create({"service.name": "checkout"}), shutdown_on_exit=False
    )
    exporter = OTLPLogExporter(
        endpoint=f"{url}/v1/logs",
        headers={"Authorization": f"Bearer {secret}", "X-Raftwood-Logstore": LOGSTORE},
        compression=compression,
    )
    provider.add_log_record_processor(BatchLogRecordProcessor(exporter))
    logger = logging.getLogger("interop.otlp")
    logger.propagate = False
    handler: Any = LoggingHandler(logger_provider=provider)
    logger.addHandler(handler)
    try:
        for number in range(100):
            logger.warning("order %d", number, extra={"order": number, "items": ["a", "b"]})
    finally:
        provider.force_flush()
        logger.removeHandler(handler)
        provider.shutdown()


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
@pytest.mark.parametrize("compression", [Compression.NoCompression, Compression.Gzip])
def test_logs_of_the_sdk_are_stored(tmp_path: Path, compression: Compression) -> None:
    async def main() -> None:
        async with ways_in_kit(tmp_path) as kit:
            secret = ":".join(kit.login)
            await asyncio.to_thread(send, kit.url, secret, compression)
            stored = await kit.stored()
        assert sorted(each.contents["body"] for each in stored) == sorted(
            f"order {number}" for number in range(100)
        )
        first = stored[0]
        assert first.tags["service.name"] == "checkout"
        assert first.tags["otel.scope.name"] == "interop.otlp"
        assert first.contents["severity_text"] in ("WARN", "WARNING")
        assert first.contents["items"] == '["a","b"]'
        assert first.contents["order"] == first.contents["body"].removeprefix("order ")

    run(main())
