"""python-logging-loki pushes to a gateway."""

import asyncio
import logging
from pathlib import Path

import logging_loki

from tests.kits.loghub.ways_in import ways_in_kit
from tests.kits.running import run


def send(url: str, login: tuple[str, str]) -> None:
    handler = logging_loki.LokiHandler(
        url=f"{url}/loki/api/v1/push", tags={"app": "shop"}, auth=login, version="1"
    )
    logger = logging.getLogger("interop.loki")
    logger.propagate = False
    logger.addHandler(handler)
    failed: list[logging.LogRecord] = []
    handler.handleError = failed.append
    try:
        for number in range(20):
            logger.error("line %d", number, extra={"tags": {"number": str(number)}})
    finally:
        logger.removeHandler(handler)
        handler.emitter.close()
    assert failed == []


def test_lines_of_the_handler_are_stored(tmp_path: Path) -> None:
    async def main() -> None:
        async with ways_in_kit(tmp_path) as kit:
            await asyncio.to_thread(send, kit.url, kit.login)
            stored = await kit.stored()
        assert len(stored) == 20
        for each in stored:
            assert each.contents == {"line": f"line {each.tags['number']}"}
            assert each.tags["app"] == "shop"
            assert each.tags["severity"] == "error"
            assert each.tags["logger"] == "interop.loki"

    run(main())
