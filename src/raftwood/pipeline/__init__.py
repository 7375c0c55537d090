"""The data pipeline on Spark: streams and tables as DataFrames, and DataFrames into them.

Imports the clients of LogHub and Zeppelin and what they share, `net`, `disk` and `base`; needs the
extra `spark`, but for `read`, `archive.reader` and what these import, which need `arrow` alone.
Start reading at `data_source`, then `offsets` and `source`; for Zeppelin `zeppelin_source` and
`zeppelin_sink`. What is listed here is for programs with jobs of their own; a name is loaded when
it is first used.
"""

from typing import TYPE_CHECKING

from raftwood.base.lazy import lazy_exports

if TYPE_CHECKING:
    from raftwood.pipeline.archive.archiver import Archiver
    from raftwood.pipeline.jobs.query import StreamOptions
    from raftwood.pipeline.jobs.runner import run_jobs
    from raftwood.pipeline.jobs.transform import Transform, TransformOptions
    from raftwood.pipeline.options import access_to
    from raftwood.pipeline.session import DELTA, spark_session

__all__ = [
    "DELTA",
    "Archiver",
    "StreamOptions",
    "Transform",
    "TransformOptions",
    "access_to",
    "run_jobs",
    "spark_session",
]

__getattr__ = lazy_exports(
    __name__,
    {
        "raftwood.pipeline.archive.archiver": ("Archiver",),
        "raftwood.pipeline.jobs.query": ("StreamOptions",),
        "raftwood.pipeline.jobs.runner": ("run_jobs",),
        "raftwood.pipeline.jobs.transform": ("Transform", "TransformOptions"),
        "raftwood.pipeline.options": ("access_to",),
        "raftwood.pipeline.session": ("DELTA", "spark_session"),
    },
)
