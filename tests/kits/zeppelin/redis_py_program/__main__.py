"""Does all that users do, and says what went wrong: `python -m … '{"host": …}'`."""

import json
import sys
import traceback

import redis

from tests.kits.zeppelin.redis_py_program import on_clusters, on_connections, on_keys
from tests.kits.zeppelin.redis_py_program.given import Given, spy


def main() -> None:
    given = Given(**json.loads(sys.argv[1]))
    sent = spy()
    failures = {}
    for scenario in (*on_keys.SCENARIOS, *on_clusters.SCENARIOS, *on_connections.SCENARIOS):
        try:
            scenario(given)
        except Exception:
            failures[scenario.__name__] = traceback.format_exc()
    with given.plain("foo") as client:
        offered = {
            name.decode() if isinstance(name, bytes) else name for name in client.command_list()
        }
    print(
        json.dumps(
            {
                "version": redis.__version__,
                "failures": failures,
                "untried": sorted(offered - sent),
            }
        )
    )


main()
