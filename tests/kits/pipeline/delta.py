"""Delta's jars for Spark, fetched by Maven."""

from tests.kits.install import maven

VERSION = "4.4.0"
LIBRARIES = (
    "delta-spark_4.2_2.13",
    "delta-storage",
    "delta-kernel-api",
    "delta-kernel-defaults",
    "delta-kernel-unitycatalog",
)


def delta_jars() -> str:
    """As Spark takes them; raises `NotInstalled`."""
    # What they need else is in Spark itself.
    libraries = (("io.delta", name, VERSION) for name in LIBRARIES)
    folder = maven.install("delta", *libraries, is_alone=True)
    return ",".join(sorted(map(str, folder.glob("*.jar"))))
