"""Java for a Spark that lives for seconds: half of the usual work.

It compiles little, and has Spark's classes from an archive, loaded and checked. A first run of
Spark makes that archive:

python -m tests.kits.pipeline.quick_java FOLDER
"""

import os
import subprocess
import sys
from functools import cache
from pathlib import Path

import pyspark

from raftwood.pipeline.session import java_home, spark_session
from tests.kits.install.cache import NotInstalled, made_once, text_of

ARCHIVE = "spark.jsa"
QUICK_SPARK = {
    "spark.sql.codegen.wholeStage": "false",
    "spark.sql.codegen.factoryMode": "NO_CODEGEN",
}
"""Spark writes and compiles code for each query, to be quick with more rows than ours."""
_COMPILES_LITTLE = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"
_JARS = Path(pyspark.__file__).parent / "jars"
_TRAIN_S_MAX = 900
"""Beside four busy loops and a busy disk, five minutes were not enough."""


@cache
def quick_java() -> str:
    """Options of Java. One that cannot archive is quick without."""
    try:
        folder = spark_classes()
    except NotInstalled:
        return _COMPILES_LITTLE
    # An archive that does not fit is no reason for a warning: its classes are loaded as usual.
    return f"{_COMPILES_LITTLE} -XX:SharedArchiveFile={folder / ARCHIVE} -Xlog:disable"


def spark_classes() -> Path:
    """The folder with the archive. It fits one Java, and these very files of Spark's alone."""
    java = f"{java_home()}/bin/java"
    version = subprocess.run((java, "-version"), capture_output=True, text=True, check=True).stderr
    jars = [f"{each} {each.stat().st_mtime_ns}" for each in sorted(_JARS.glob("spark-c*.jar"))]
    return made_once("spark-classes", "\n".join([version, *jars, text_of(Path(__file__))]), _make)


def _make(folder: Path) -> None:
    folder.mkdir()
    try:
        done = subprocess.run(
            (sys.executable, "-m", __name__, str(folder)),
            env=os.environ | {"PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
            capture_output=True,
            text=True,
            timeout=_TRAIN_S_MAX,
            check=False,
        )
    except subprocess.TimeoutExpired as error:
        raise NotInstalled(
            f"Java did not archive Spark's classes within {_TRAIN_S_MAX} s"
        ) from error
    if done.returncode or not (folder / ARCHIVE).exists():
        raise NotInstalled(f"Java does not archive Spark's classes: {done.stderr[-500:]}")


def _train(folder: Path) -> None:
    """What every test does: frames, files, and a stream."""
    archive = f"-XX:ArchiveClassesAtExit={folder / ARCHIVE} -Xlog:disable"
    settings = {
        "spark.driver.memory": "768m",
        "spark.driver.extraJavaOptions": f"{_COMPILES_LITTLE} {archive}",
        "spark.sql.warehouse.dir": str(folder / "warehouse"),
        "spark.local.dir": str(folder / "scratch"),
    }
    spark = spark_session("archive", settings=settings, log_level="ERROR")
    gateway = spark.sparkContext._gateway
    assert gateway is not None
    rows = str(folder / "scratch" / "rows")
    frame = spark.createDataFrame([(each, str(each)) for each in range(100)], "a int, b string")
    frame.groupBy("b").count().orderBy("b").collect()
    frame.write.parquet(rows)
    stream = (
        spark.readStream.schema("a int, b string")
        .parquet(rows)
        .writeStream.format("parquet")
        .option("checkpointLocation", str(folder / "scratch" / "checkpoint"))
        .trigger(availableNow=True)
        .start(str(folder / "scratch" / "copy"))
    )
    stream.awaitTermination()
    spark.stop()
    gateway.shutdown()
    gateway.proc.stdin.close()
    gateway.proc.wait(_TRAIN_S_MAX)


if __name__ == "__main__":
    _train(Path(sys.argv[1]))
