"""The process from which Spark forks its Python workers, with all loaded that their tasks need.

Spark starts it by the setting `spark.python.daemon.module`. Its own one loads nothing of ours, so
that each worker loads it again: a second of work, before its first row.
"""

import sys

from pyspark import daemon

if __name__ == "__main__":
    if sys.argv[1:] == ["pyspark.worker"]:  # the other kinds live for one question
        import pandas  # noqa: F401 (Arrow asks for it when it makes its first array)

        import raftwood.pipeline.sink.writers
        import raftwood.pipeline.source.range_reader  # noqa: F401
    daemon.manager()
