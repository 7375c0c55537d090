"""Which project a Host header names: `project.endpoint[:port]`."""

import re
from collections.abc import Collection
from typing import Final

_ADDRESS: Final = re.compile(r"\d{1,3}(?:\.\d{1,3}){3}")


def project_of_host(host: str, endpoints: Collection[str] = ()) -> str:
    """The project, or nothing for a bare address or one of the gateway's own names (`endpoints`).

    Of a name that is not known to be the gateway's the first label is the project.
    """
    name = host[: host.index("]") + 1] if host.startswith("[") and "]" in host else host
    if not name.startswith("["):
        name = name.partition(":")[0]
    name = name.lower() if name in endpoints else name
    if not name or name.startswith("[") or name in endpoints or _ADDRESS.fullmatch(name):
        return ""
    for endpoint in endpoints:
        if name.endswith("." + endpoint):
            return name[: -len(endpoint) - 1]
    first, dot, _ = name.partition(".")
    return first if dot else ""
