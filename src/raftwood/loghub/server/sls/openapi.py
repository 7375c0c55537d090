"""The OpenAPI description of SLS's calls, generated from the structs that encode them."""

from typing import Any, Final

import msgspec

from raftwood.loghub.server.sls import messages
from raftwood.loghub.server.sls.bodies import ARROW
from raftwood.loghub.server.sls.messages import ErrorBody

PROTOBUF: Final = "application/x-protobuf"
JSON: Final = "application/json"
_BYTES: Final = {"type": "string", "format": "binary"}
_EMPTY: Final[dict[str, Any]] = {"description": "Done."}
_STRUCTS: Final = tuple(
    kind
    for kind in (*vars(messages).values(), ErrorBody)
    if isinstance(kind, type)
    and issubclass(kind, msgspec.Struct)
    and (kind.__module__ == messages.__name__ or kind is ErrorBody)
    and not kind.__name__.startswith("_")
)


def openapi_json() -> bytes:
    return msgspec.json.format(msgspec.json.encode(openapi_document()), indent=1)


def openapi_document() -> dict[str, Any]:
    _, schemas = msgspec.json.schema_components(
        _STRUCTS, ref_template="#/components/schemas/{name}"
    )
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Raftwood LogHub, as SLS",
            "version": "0.6.0",
            "description": "The project is the first label of Host, as in project.endpoint. "
            "Requests are signed as SLS clients do, version 1 or 4.",
        },
        "security": [{"signature": []}],
        "paths": _paths(),
        "components": {
            "schemas": schemas,
            "securitySchemes": {
                "signature": {"type": "apiKey", "in": "header", "name": "Authorization"}
            },
            "responses": {
                "Error": {
                    "description": "Refused; the header x-log-requestid names the request.",
                    "content": {JSON: {"schema": _reference("ErrorBody")}},
                }
            },
        },
    }


def _paths() -> dict[str, Any]:
    logstore = "/logstores/{logstore}"
    shard = f"{logstore}/shards/{{shard}}"
    groups = f"{logstore}/consumergroups"
    route = {"name": "key", "in": "query", "required": True, "schema": _HASH}
    return {
        "/": {
            "get": _call("get or list projects", _answer_any("ProjectAnswer", "ProjectsAnswer"),
                         query=(("offset", _NUMBER), ("size", _SIZE), ("projectName", _TEXT))),
            "post": _call("create a project", _EMPTY, body="CreateProjectBody"),
            "put": _call("change a project", _EMPTY, body="UpdateProjectBody"),
            "delete": _call("delete a project", _EMPTY),
        },
        "/logstores": {
            "get": _call("list logstores", _answer("LogstoresAnswer"),
                         query=(("offset", _NUMBER), ("size", _SIZE), ("logstoreName", _TEXT))),
            "post": _call("create a logstore", _EMPTY, body="LogstoreBody"),
        },
        logstore: {
            "get": _call("get a logstore", _answer("LogstoreAnswer"), path=("logstore",)),
            "post": _put("put a LogGroup"),
            "put": _call("change a logstore", _EMPTY, body="LogstoreBody", path=("logstore",)),
            "delete": _call("delete a logstore", _EMPTY, path=("logstore",)),
        },
        f"{logstore}/shards": {
            "get": _call("list shards", _answers("ShardAnswer"), path=("logstore",)),
        },
        f"{logstore}/shards/lb": {"post": _put("put a LogGroup to any shard")},
        f"{logstore}/shards/route": {"post": _put("put a LogGroup to the shard of a key", route)},
        shard: {
            "get": _pull(),
            "post": _call("split or merge a shard", _answers("ShardAnswer"),
                          path=("logstore", "shard"),
                          query=(("action", {"enum": ["split", "merge"]}), ("key", _HASH))),
            "delete": _call("delete a shard that was split or merged", _EMPTY,
                            path=("logstore", "shard")),
        },
        groups: {
            "get": _call("list consumer groups", _answers("GroupAnswer"), path=("logstore",)),
            "post": _call("create a consumer group", _EMPTY, body="CreateGroupBody",
                          path=("logstore",)),
        },
        f"{groups}/{{group}}": {
            "get": _call("get checkpoints", _answers("CheckpointAnswer"),
                         path=("logstore", "group"), query=(("shard", _NUMBER),)),
            "put": _call("change a consumer group", _EMPTY, body="UpdateGroupBody",
                         path=("logstore", "group")),
            "post": _group_post(),
            "delete": _call("delete a consumer group", _EMPTY, path=("logstore", "group")),
        },
    }  # fmt: skip


_TEXT: Final = {"type": "string"}
_NUMBER: Final = {"type": "integer", "minimum": 0}
_SIZE: Final = {"type": "integer", "minimum": 1, "maximum": 500}
_HASH: Final = {"type": "string", "pattern": "^[0-9a-fA-F]{32}$"}
_NAME: Final = {"type": "string", "pattern": "^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$"}
_IN_PATH: Final = {"logstore": _NAME, "group": _NAME, "shard": _NUMBER}


def _reference(name: str) -> dict[str, str]:
    return {"$ref": f"#/components/schemas/{name}"}


def _answer_of(schema: dict[str, Any]) -> dict[str, Any]:
    return {"description": "Done.", "content": {JSON: {"schema": schema}}}


def _answer(name: str) -> dict[str, Any]:
    return _answer_of(_reference(name))


def _answers(name: str) -> dict[str, Any]:
    return _answer_of({"type": "array", "items": _reference(name)})


def _answer_any(*names: str) -> dict[str, Any]:
    return _answer_of({"anyOf": [_reference(name) for name in names]})


def _call(
    summary: str,
    answer: dict[str, Any],
    *,
    body: str = "",
    path: tuple[str, ...] = (),
    query: tuple[tuple[str, dict[str, Any]], ...] = (),
) -> dict[str, Any]:
    parameters: list[dict[str, Any]] = [
        {"name": name, "in": "path", "required": True, "schema": _IN_PATH[name]} for name in path
    ]
    parameters += [{"name": name, "in": "query", "schema": schema} for name, schema in query]
    found: dict[str, Any] = {
        "summary": summary,
        "operationId": summary.replace(" ", "_"),
        "responses": {"200": answer, "default": {"$ref": "#/components/responses/Error"}},
    }
    if parameters:
        found["parameters"] = parameters
    if body:
        found["requestBody"] = {"required": True, "content": {JSON: {"schema": _reference(body)}}}
    return found


def _put(summary: str, *parameters: dict[str, Any]) -> dict[str, Any]:
    found = _call(summary, _EMPTY, path=("logstore",))
    size = {"type": "integer", "minimum": 0, "maximum": 10 << 20}
    found["parameters"] += [
        *parameters,
        {"name": "x-log-bodyrawsize", "in": "header", "required": True, "schema": size},
        {
            "name": "x-log-compresstype",
            "in": "header",
            "schema": {"enum": ["", "lz4", "zstd", "deflate"]},
        },
    ]
    found["requestBody"] = {
        "required": True,
        "content": {PROTOBUF: {"schema": _BYTES}, ARROW: {"schema": _BYTES}},
    }
    return found


def _pull() -> dict[str, Any]:
    kinds = ["log", "logs", "cursor", "cursor_time"]
    found = _call(
        "pull, or get a cursor, or its time",
        _answer_any("CursorAnswer", "CursorTimeAnswer"),
        path=("logstore", "shard"),
        query=(
            ("type", {"enum": kinds}),
            ("cursor", _TEXT),
            ("end_cursor", _TEXT),
            ("count", _NUMBER),
            ("from", {"anyOf": [{"enum": ["begin", "end"]}, _NUMBER]}),
            # Raftwood's own parameter: how long to wait for the first LogGroup.
            ("wait_ms", {"type": "integer", "minimum": 0, "maximum": 30_000}),
        ),
    )
    found["responses"]["200"]["content"] |= {
        PROTOBUF: {"schema": _BYTES},
        ARROW: {"schema": _BYTES},
    }
    return found


def _group_post() -> dict[str, Any]:
    shards = {"type": "array", "items": _NUMBER}
    found = _call(
        "send a heartbeat, or set a checkpoint",
        _answer_of(shards),
        path=("logstore", "group"),
        query=(
            ("type", {"enum": ["heartbeat", "checkpoint"]}),
            ("consumer", _TEXT),
            ("forceSuccess", {"enum": ["true", "false", "True", "False"]}),
        ),
    )
    body = {"anyOf": [shards, _reference("CheckpointBody")]}
    found["requestBody"] = {"required": True, "content": {JSON: {"schema": body}}}
    return found
