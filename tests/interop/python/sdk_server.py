"""Serves SLS's Python SDK, as it is, to a test of another environment: see `tests.kits.loghub.sls_sdk`.

A line of JSON asks, a line answers. What JSON cannot say stays here, and is known by a number.
"""

import importlib
import json
import os
import sys
from typing import Any

_objects: list[Any] = []


def sign(version: int, request: list[Any], key: list[str], region: str) -> dict[str, str]:
    """The headers of a request as the SDK signs it; the SDK changes them in place."""
    auth: Any = importlib.import_module("aliyun.log.auth")
    credentials: Any = importlib.import_module("aliyun.log.credentials")
    provider = credentials.StaticCredentialsProvider(*key)
    method, path, parameters, headers, body = request
    signer = auth.AuthV1(provider) if version == 1 else auth.AuthV4(provider, region)
    signer.sign_request(method, path, parameters, headers, body.encode("latin-1"))
    return dict(headers)


def carried_out(operation: str, target: Any, *given: Any) -> Any:
    if operation == "import":
        return importlib.import_module(target)
    if operation == "get":
        return getattr(target, *given)
    if operation == "list":
        return list(target)
    positional, named = given
    return target(*positional, **named)


def told(value: Any) -> Any:
    if value is None or isinstance(value, bool | int | float | str):
        return value
    if isinstance(value, list | tuple):
        return [told(each) for each in value]
    if isinstance(value, dict):
        return {str(name): told(each) for name, each in value.items()}
    _objects.append(value)
    return {"object": len(_objects) - 1}


def meant(value: Any) -> Any:
    if isinstance(value, list):
        return [meant(each) for each in value]
    if isinstance(value, dict):
        if value.keys() == {"object"}:
            return _objects[value["object"]]
        return {name: meant(each) for name, each in value.items()}
    return value


def answer(line: str) -> dict[str, Any]:
    try:
        return {"value": told(carried_out(*meant(json.loads(line))))}
    except Exception as error:
        # The SDK's own errors have these; others are told by their text.
        code = getattr(error, "get_error_code", str)()
        request_id = getattr(error, "get_request_id", str)()
        return {"failed": code, "request_id": request_id, "message": repr(error)}


def main() -> None:
    # What the SDK prints goes elsewhere.
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())
    for line in sys.stdin:
        answers.write(json.dumps(answer(line)) + "\n")
        answers.flush()


if __name__ == "__main__":
    sys.modules["sdk_server"] = sys.modules["__main__"]
    main()
