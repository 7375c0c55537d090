"""Which project a Host header names: `project.endpoint[:port]`."""

import re
from collections.abc import Collection
from typing import Final

_ADDRESS: Final = re.compile(r"\[.*|\d{1,3}(?:\.\d{1,3}){3}(?::\d*)?")


def project_of_host(host: str, endpoints: Collection[str] = ()) -> str:
    """The project, or nothing for a bare address or one of the gateway's own names (`endpoints`).

    Of a name that is not known to be the gateway's the first label is the project.
    """
    if _ADDRESS.fullmatch(host):
        return ""
    name = host.partition(":")[0]
    for endpoint in endpoints:
        if name.lower() == endpoint:
            return ""
        if name.lower().endswith("." + endpoint):
            return name[: -len(endpoint) - 1]
    first, dot, _ = name.partition(".")
    return first if dot else ""
