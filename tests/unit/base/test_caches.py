"""A cache forgets what was not used for the longest time, and only as much as it must."""

from hypothesis import given
from hypothesis import strategies as st

from raftwood.base.caches import LruCache

KEYS = st.integers(0, 5)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), KEYS, st.integers(0, 12)),
        st.tuples(st.sampled_from(["get", "pop"]), KEYS, st.just(0)),
    ),
    max_size=40,
)


@given(STEPS, st.integers(0, 20))
def test_it_is_a_list_in_the_order_of_use(
    steps: list[tuple[str, int, int]], weight_max: int
) -> None:
    cache: LruCache[int, str] = LruCache(weight_max)
    naive: list[tuple[int, str, int]] = []  # key, value, weight; the one used last is the last
    for number, (step, key, weight) in enumerate(steps):
        known = [each for each in naive if each[0] == key]
        value = known[0][1] if known else None
        naive = [each for each in naive if each[0] != key]
        if step == "put":
            naive.append((key, f"{number}", weight))
            displaced = []
            while sum(each[2] for each in naive) > weight_max:
                displaced.append(naive.pop(0)[1])
            assert cache.put(key, f"{number}", weight) == displaced
        elif step == "get":
            assert cache.get(key) == value
            naive += known
        else:
            assert cache.pop(key) == value
    assert cache.pop_all() == [value for _, value, _ in naive]
    assert cache.pop_all() == []
    assert cache.put(1, "again", weight_max) == []


def test_without_weights_it_is_bound_by_number() -> None:
    cache: LruCache[str, int] = LruCache(2)
    cache.put("a", 1)
    cache.put("b", 2)
    cache.get("a")
    assert cache.put("c", 3) == [2]
    assert [cache.get(key) for key in "abc"] == [1, None, 3]
