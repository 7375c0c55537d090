"""Elasticsearch's official client sends documents in bulk to a gateway."""

import asyncio
import base64
from pathlib import Path
from typing import Any

import pytest
from elasticsearch import Elasticsearch, helpers

from tests.kits.loghub.ways_in import LOGSTORE, ways_in_kit
from tests.kits.running import run


def send(url: str, documents: list[dict[str, Any]], **options: Any) -> tuple[int, list[Any]]:
    with Elasticsearch(url, **options) as client:
        assert client.info()["version"]["number"].startswith("9.")
        assert client.ping()
        count, errors = helpers.bulk(client, documents, raise_on_error=False)
        assert isinstance(errors, list)
        return count, errors


@pytest.mark.parametrize("prefix", ["", "/elasticsearch"])
@pytest.mark.parametrize("is_compressed", [False, True])
def test_documents_of_the_client_are_stored(
    tmp_path: Path, prefix: str, is_compressed: bool
) -> None:
    documents = [
        {
            "_index": LOGSTORE,
            "_op_type": "create",
            "@timestamp": "2026-11-16T08:00:00.5Z",
            "message": f"document {number}",
            "user": {"id": number},
        }
        for number in range(100)
    ]

    async def main() -> None:
        async with ways_in_kit(tmp_path) as kit:
            count, errors = await asyncio.to_thread(
                send,
                kit.url + prefix,
                documents,
                basic_auth=kit.login,
                http_compress=is_compressed,
            )
            stored = await kit.stored()
        assert (count, errors) == (100, [])
        assert [each.contents["message"] for each in stored] == [
            f"document {number}" for number in range(100)
        ]
        assert stored[7].contents["user"] == '{"id":7}'
        assert stored[7].time_ns % 1_000_000_000 == 500_000_000

    run(main())


def test_what_cannot_be_stored_is_told_item_by_item(tmp_path: Path) -> None:
    documents: list[dict[str, Any]] = [
        {"_index": LOGSTORE, "message": "stored", "_id": "mine"},
        {"_index": "not-there", "message": "lost"},
        {"_index": LOGSTORE, "_op_type": "delete", "_id": "mine"},
        {"_index": LOGSTORE, "_op_type": "update", "_id": "mine", "doc": {"a": 1}},
    ]

    async def main() -> None:
        async with ways_in_kit(tmp_path) as kit:
            key = base64.b64encode(":".join(kit.login).encode()).decode()
            count, errors = await asyncio.to_thread(send, kit.url, documents, api_key=key)
            stored = await kit.stored()
        assert count == 1
        told = [next(iter(error.items())) for error in errors]
        assert [(action, item["status"]) for action, item in told] == [
            ("index", 404),
            ("delete", 400),
            ("update", 400),
        ]
        assert told[0][1]["error"]["type"] == "index_not_found_exception"
        assert [each.contents for each in stored] == [{"message": "stored", "_id": "mine"}]

    run(main())
