"""`HadoopFiles`: an archive on the file systems that Spark's own JVM knows."""

import uuid
from collections.abc import Iterable
from typing import Any, Final
from urllib.parse import unquote

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from raftwood.base.file_systems import folder_uri
from raftwood.pipeline.archive.files import (
    ArchiveFiles,
    ArrowFiles,
    not_found,
    sync_locally,
)

_EXISTS: Final = "org.apache.hadoop.fs.FileAlreadyExistsException"
_NOT_FOUND: Final = "java.io.FileNotFoundException"
_NO_CONTEXT: Final = "org.apache.hadoop.fs.UnsupportedFileSystemException"


def spark_files(spark: SparkSession, uri: str) -> ArchiveFiles:
    """By Hadoop's file systems; by Arrow's through Spark Connect, where there is no JVM to ask."""
    return ArrowFiles(uri) if getattr(spark, "_jvm", None) is None else HadoopFiles(spark, uri)


class HadoopFiles:
    """Of a session with a JVM of its own."""

    def __init__(self, spark: SparkSession, uri: str) -> None:
        self.uri = folder_uri(uri)
        self._jvm: Any = spark._jvm
        self._configuration = spark._jsc.hadoopConfiguration()
        self._files = self._path("").getFileSystem(self._configuration)

    def _path(self, path: str) -> Any:
        return self._jvm.org.apache.hadoop.fs.Path(f"{self.uri}/{path}" if path else self.uri)

    def names(self, folder: str) -> list[str]:
        try:
            found = self._files.listStatus(self._path(folder))
        except Py4JJavaError as error:
            if _class_of(error) == _NOT_FOUND:
                return []
            raise
        return sorted(each.getPath().getName() for each in found)

    def read(self, path: str) -> bytes:
        try:
            stream = self._files.open(self._path(path))
        except Py4JJavaError as error:
            if _class_of(error) == _NOT_FOUND:
                raise not_found(self.uri, path) from error
            raise
        try:
            return bytes(self._jvm.org.apache.commons.io.IOUtils.toByteArray(stream))
        finally:
            stream.close()

    def create(self, path: str, data: bytes) -> bool:
        try:
            context = self._jvm.org.apache.hadoop.fs.FileContext.getFileContext(
                self._path("").toUri(), self._configuration
            )
        except Py4JJavaError as error:
            if _class_of(error) != _NO_CONTEXT:
                raise
            # Object stores show a file when it is closed, and not before.
            return self._write(path, data)
        temporary = f"{path}.{uuid.uuid4().hex}.new"
        self._write(temporary, data)
        try:
            none = self._jvm.org.apache.hadoop.fs.Options.Rename
            overwriting = self._jvm.java.lang.reflect.Array.newInstance(none._java_lang_class, 0)
            context.rename(self._path(temporary), self._path(path), overwriting)
        except Py4JJavaError as error:
            self._files.delete(self._path(temporary), False)
            if _class_of(error) == _EXISTS:
                return False
            raise
        self.sync((path,))
        return True

    def _write(self, path: str, data: bytes) -> bool:
        try:
            stream = self._files.create(self._path(path), False)
        except Py4JJavaError as error:
            if _class_of(error) == _EXISTS:
                return False
            raise
        try:
            stream.write(bytearray(data))
        finally:
            stream.close()
        return True

    def remove(self, folder: str) -> None:
        self._files.delete(self._path(folder), True)

    def sync(self, paths: Iterable[str]) -> None:
        """HDFS and object stores keep what was closed; on this machine it is for us to see to."""
        if self._files.getUri().getScheme() == "file":
            root = unquote(self.uri.removeprefix("file:").removeprefix("//"))
            sync_locally(f"{root}/{path}" for path in paths)


def _class_of(error: Py4JJavaError) -> str:
    return str(error.java_exception.getClass().getName())
