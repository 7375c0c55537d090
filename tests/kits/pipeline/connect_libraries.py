"""What Spark Connect's client needs beside what is installed, in a folder of its own.

It wants a newer protobuf than SLS's own SDK allows, which the tests of interoperability use: the
two cannot live in one environment.
"""

from pathlib import Path

from tests.kits.install import python as python_libraries

LIBRARIES = ("protobuf==6.33.5", "grpcio-status==1.85.1")


def install() -> Path:
    """The folder, for the front of PYTHONPATH; raises `NotInstalled`."""
    return python_libraries.install("spark-connect", *LIBRARIES)
