"""A file's bytes as pages that copies share: an image costs what differs, not what is stored."""

from typing import Final

PAGE_BYTES: Final = 4096
_ZEROS: Final = bytes(PAGE_BYTES)


class Content:
    """Sparse bytes: a page that is missing reads as zeros.

    Copies share the table of pages until one of them is written: most are only read, or not at all.
    """

    __slots__ = ("_is_shared", "_pages", "length")

    def __init__(self) -> None:
        self.length = 0
        self._pages: dict[int, bytes] = {}
        self._is_shared = False

    def copy(self) -> "Content":
        other = Content()
        other.length = self.length
        other._pages = self._pages
        other._is_shared = self._is_shared = True
        return other

    def _own_pages(self) -> dict[int, bytes]:
        if self._is_shared:
            self._pages = self._pages.copy()
            self._is_shared = False
        return self._pages

    def write(self, offset: int, data: bytes) -> None:
        """Write, growing the file if needed."""
        end = offset + len(data)
        self.length = max(self.length, end)
        pages = self._own_pages()
        index, start = divmod(offset, PAGE_BYTES)
        if start + len(data) <= PAGE_BYTES:
            page = pages.get(index, _ZEROS)
            pages[index] = page[:start] + data + page[start + len(data) :]
            return
        position = 0
        while position < len(data):
            index, start = divmod(offset + position, PAGE_BYTES)
            part = data[position : position + PAGE_BYTES - start]
            if len(part) < PAGE_BYTES:
                page = pages.get(index, _ZEROS)
                part = page[:start] + part + page[start + len(part) :]
            position += PAGE_BYTES - start
            pages[index] = part

    def read(self, offset: int, length: int) -> bytes:
        """Bytes from the offset, fewer only at the end of the file."""
        end = min(offset + length, self.length)
        if offset >= end:
            return b""
        first, start = divmod(offset, PAGE_BYTES)
        last = (end - 1) // PAGE_BYTES
        pages = self._pages
        if first == last:
            return pages.get(first, _ZEROS)[start : start + end - offset]
        whole = b"".join([pages.get(index, _ZEROS) for index in range(first, last + 1)])
        return whole[start : start + end - offset]

    def set_length(self, length: int) -> None:
        """Cut or extend; what is cut off and comes back reads as zeros."""
        if length < self.length:
            index, start = divmod(length, PAGE_BYTES)
            pages = self._own_pages()
            for gone in [each for each in pages if each > index or (each == index and not start)]:
                del pages[gone]
            if start and index in pages:
                pages[index] = pages[index][:start] + _ZEROS[start:]
        self.length = length

    def flip_bit(self, offset: int, bit: int) -> None:
        if offset >= self.length:
            raise ValueError(f"offset {offset} is behind the end at {self.length}")
        old = self.read(offset, 1)[0]
        self.write(offset, bytes([old ^ (1 << bit)]))
