"""`LruCache`: the most recently used values, within a bound."""

from collections.abc import Hashable
from typing import Generic, TypeVar

Key = TypeVar("Key", bound=Hashable)
Value = TypeVar("Value")


class LruCache(Generic[Key, Value]):
    """Values by key, within a bound on their total weight. A value weighs 1, which bounds their
    number, or as much as the caller says, such as its bytes.
    """

    def __init__(self, weight_max: int) -> None:
        self._weight_max = weight_max
        self._weight = 0
        self._found: dict[Key, tuple[Value, int]] = {}
        """In order of use."""

    def get(self, key: Key) -> Value | None:
        """Returns a value, and marks it as used."""
        found = self._found.pop(key, None)
        if found is None:
            return None
        self._found[key] = found
        return found[0]

    def put(self, key: Key, value: Value, weight: int = 1) -> list[Value]:
        """Sets a value. Returns those that it displaces, for the caller to close."""
        self.pop(key)
        self._found[key] = value, weight
        self._weight += weight
        displaced: list[Value] = []
        while self._weight > self._weight_max:
            oldest, oldest_weight = self._found.pop(next(iter(self._found)))
            self._weight -= oldest_weight
            displaced.append(oldest)
        return displaced

    def pop(self, key: Key) -> Value | None:
        """Removes a value."""
        found = self._found.pop(key, None)
        if found is None:
            return None
        self._weight -= found[1]
        return found[0]

    def pop_all(self) -> list[Value]:
        """Removes all values."""
        found, self._found, self._weight = self._found, {}, 0
        return [value for value, _ in found.values()]
