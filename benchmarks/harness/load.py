"""What our load programs in Python share: their flags and the lines that they print."""

import argparse
import json
from typing import Any


def parser() -> argparse.ArgumentParser:
    """The flags that `Load.flags` gives; a program adds its own, such as the addresses."""
    made = argparse.ArgumentParser()
    made.add_argument("--in-flight", type=int, required=True)
    made.add_argument("--bytes", type=int, required=True)
    made.add_argument("--warm", type=_seconds, required=True)
    made.add_argument("--seconds", type=_seconds, required=True)
    made.add_argument("--clients", type=int, default=1)
    made.add_argument("--shards", type=int, default=1)
    made.add_argument("--batched", action="store_true")
    made.add_argument("--way", default="")
    made.add_argument("--kill", type=int)
    return made


def say(event: str, **fields: Any) -> None:
    print(json.dumps({"event": event, **fields}), flush=True)


def say_result(
    latencies_s: list[float], *, elapsed_s: float, cpu_s: float, count: int | None = None
) -> None:
    """Of each append, or of some of them if their `count` is given."""
    ordered = sorted(latencies_s)
    if not ordered or count == 0:
        raise SystemExit(f"no append was acked in {elapsed_s:.1f} s")
    say(
        "result",
        count=len(ordered) if count is None else count,
        elapsed_s=elapsed_s,
        p50_ms=ordered[len(ordered) // 2] * 1000,
        p99_ms=ordered[int(len(ordered) * 0.99)] * 1000,
        client_cpu_s=cpu_s,
    )


def _seconds(text: str) -> float:
    return float(text.removesuffix("s"))
