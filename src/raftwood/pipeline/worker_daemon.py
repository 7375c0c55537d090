"""The process from which Spark forks its Python workers, with all modules of their tasks loaded.

Spark starts it by the setting `spark.python.daemon.module`. Spark's own daemon loads none of our
modules, so each worker would load them again, which takes a second before its first row.
"""

import sys
from contextlib import suppress

from pyspark import daemon

if __name__ == "__main__":
    if sys.argv[1:] == ["pyspark.worker"]:  # the other kinds of workers answer one request
        with suppress(ImportError):  # Arrow needs it when it makes its first array
            import pandas  # noqa: F401

        import raftwood.pipeline.range_reader
        import raftwood.pipeline.sink  # noqa: F401
    daemon.manager()
