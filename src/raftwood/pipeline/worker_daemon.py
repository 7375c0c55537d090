"""The process from which Spark forks its Python workers, with all loaded that their tasks need.

Spark starts it by the setting `spark.python.daemon.module`. Its own one loads nothing of ours, so
that each worker loads it again: a second of work, before its first row.
"""

import sys
from contextlib import suppress

from pyspark import daemon

if __name__ == "__main__":
    if sys.argv[1:] == ["pyspark.worker"]:  # the other kinds live for one question
        with suppress(ImportError):  # Arrow asks for it when it makes its first array
            import pandas  # noqa: F401

        import raftwood.pipeline.range_reader
        import raftwood.pipeline.sink  # noqa: F401
    daemon.manager()
