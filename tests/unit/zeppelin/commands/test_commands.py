"""Commands one by one: what the random ones don't reach, and errors to the letter."""

from typing import Any

import pytest
from msgspec.structs import replace

from raftwood.zeppelin.commands import cluster as cluster_module
from raftwood.zeppelin.commands import keys as keys_module
from raftwood.zeppelin.commands.command import CLUSTER_DOWN, DONE
from raftwood.zeppelin.commands.dispatch import COMMANDS
from raftwood.zeppelin.commands.keys import Pattern
from raftwood.zeppelin.model import Topology, User
from raftwood.zeppelin.resp import RESP3
from raftwood.zeppelin.slots import slot_of
from tests.kits.zeppelin.command_kit import CommandClient, CommandHost
from tests.kits.zeppelin.static_view import READER, nodes_of_all, single_node


@pytest.fixture
def client() -> CommandClient:
    return CommandHost().client()


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (
            ("NONSENSE", "a", "b"),
            "ERR unknown command 'NONSENSE', with args beginning with: 'a' 'b' ",
        ),
        (("GET",), "ERR wrong number of arguments for 'get' command"),
        (("MSET", "{t}a", "1", "{t}b"), "ERR wrong number of arguments for 'mset' command"),
        (("MGET", "a", "b"), "CROSSSLOT Keys in request don't hash to the same slot"),
        (("SET", "a", "1", "EX"), "ERR syntax error"),
        (("SET", "a", "1", "NX", "XX"), "ERR syntax error"),
        (("SET", "a", "1", "EX", "1", "KEEPTTL"), "ERR syntax error"),
        (("SET", "a", "1", "EX", "0"), "ERR invalid expire time in 'set' command"),
        (("SET", "a", "1", "EX", "x"), "ERR value is not an integer or out of range"),
        (("SET", "a", "1", "EX", str(2**62)), "ERR invalid expire time in 'set' command"),
        (("SETEX", "a", "-1", "1"), "ERR invalid expire time in 'setex' command"),
        (("EXPIRE", "a", str(2**62)), "ERR invalid expire time in 'expire' command"),
        (
            ("EXPIRE", "a", "1", "NX", "GT"),
            "ERR NX and XX, GT or LT options at the same time are not compatible",
        ),
        (
            ("EXPIRE", "a", "1", "GT", "LT"),
            "ERR GT and LT options at the same time are not compatible",
        ),
        (("EXPIRE", "a", "1", "ab"), "ERR Unsupported option ab"),
        (("INCRBY", "a", "+1"), "ERR value is not an integer or out of range"),
        (("DECRBY", "a", str(-(2**63))), "ERR decrement would overflow"),
        (("INCRBYFLOAT", "a", "x"), "ERR value is not a valid float"),
        (("INCRBYFLOAT", "a", "inf"), "ERR increment would produce NaN or Infinity"),
        (("SETRANGE", "a", "-1", "x"), "ERR offset is out of range"),
        (
            ("SETRANGE", "a", "17000000", "x"),
            "ERR string exceeds maximum allowed size (proto-max-bulk-len)",
        ),
        (("SELECT", "1"), "ERR SELECT is not allowed in cluster mode"),
        (("SCAN", "x"), "ERR invalid cursor"),
        (("SCAN", "0", "COUNT", "0"), "ERR syntax error"),
        (("CLIENT", "NONSENSE"), "ERR unknown subcommand 'NONSENSE'. Try CLIENT HELP."),
        (("CLIENT", "SETNAME"), "ERR wrong number of arguments for 'client|setname' command"),
        (
            ("CLIENT", "SETNAME", "a b"),
            "ERR Client names cannot contain spaces, newlines or special characters.",
        ),
        (("TAG", "NONSENSE", "t"), "ERR unknown subcommand 'NONSENSE'. Try TAG HELP."),
        (("COMMAND", "GETKEYS", "PING"), "ERR The command has no key arguments"),
        (("HELLO", "4"), "NOPROTO unsupported protocol version"),
        (("HELLO", "3", "NONSENSE"), "ERR Syntax error in HELLO option 'NONSENSE'"),
    ],
)
def test_refusals_are_worded_as_by_redis(
    client: CommandClient, words: tuple[str, ...], answer: str
) -> None:
    assert client(*words) == answer


def test_strangers_may_log_in_and_nothing_else() -> None:
    client = CommandHost().client(None)
    for name, command in COMMANDS.items():
        if "no_auth" not in command.flags:
            word = next(iter(command.subcommands), b"a")
            words = [name] + [word] * (abs(command.arity) - 1)
            assert client(*words) == "NOAUTH Authentication required."
    assert client("HELLO", 3).startswith("NOAUTH HELLO must be called")
    assert client("AUTH", "writer", "guess").startswith("WRONGPASS")
    assert client("AUTH", "nobody", "correct-horse").startswith("WRONGPASS")
    assert client("HELLO", 3, "AUTH", "writer", "correct-horse")[b"proto"] == 3
    assert client("GET", "a") is None
    assert client("RESET") == "RESET"
    assert client("GET", "a") == "NOAUTH Authentication required."


class _LateHost(CommandHost):
    """Hears of its users while it checks a password."""

    async def verified(self, name: str, password: bytes) -> User | None:
        known, self.view.topology = self.view.topology, single_node().topology
        return known.users.get(name) if password == b"correct-horse" else None


def test_a_node_that_hears_of_its_users_during_a_login_does_not_call_the_password_wrong() -> None:
    host = _LateHost()
    host.view.topology = Topology()
    client = host.client(None)
    assert client("AUTH", "writer", "correct-horse").startswith("LOADING")
    assert client("AUTH", "writer", "correct-horse") == "OK"


def test_who_may_only_read_is_refused_every_write() -> None:
    client = CommandHost().client(READER)
    for name, command in COMMANDS.items():
        if command.is_write:
            words = [name] + ["1"] * (abs(command.arity) - 1)
            assert client(*words).startswith("NOPERM User reader has no permissions to run the")
    assert client("TAG", "DEL", "t").startswith("NOPERM")
    assert client("TAG", "LIST", "t") == []


def test_a_user_that_is_gone_or_changed_is_logged_out() -> None:
    host = CommandHost()
    client = host.client()
    assert client("PING") == "PONG"
    topology = host.view.topology
    host.view.topology = type(topology)(
        epoch=topology.epoch + 1, tables=topology.tables, nodes=topology.nodes, users={}
    )
    assert client("GET", "a") == "NOAUTH Authentication required."


@pytest.mark.parametrize("role", [(), ("READONLY",)])
def test_who_asks_all_masters_for_their_keys_gets_each_once(role: tuple[str, ...]) -> None:
    clients = [CommandHost(view).client() for view in nodes_of_all([7001, 7002])]
    expected = sorted(b"key%d" % number for number in range(100))
    for client in clients:
        for key in expected:
            client("SET", key, 1)
        if role:
            client(*role)
    assert sum(client("DBSIZE") for client in clients) == 100
    assert sorted(key for client in clients for key in client("KEYS", "*")) == expected
    scanned = [client("SCAN", 0, "COUNT", 1000) for client in clients]
    assert sorted(key for _, keys in scanned for key in keys) == expected


def test_a_node_that_is_a_slave_alone_tells_its_keys_to_those_who_said_readonly() -> None:
    master, slave = (CommandHost(view).client() for view in nodes_of_all([1, 2], partitions=1))
    master("SET", "a", 1)
    assert slave("KEYS", "*") == []
    slave("READONLY")
    assert slave("KEYS", "*") == [b"a"]
    assert slave("RANDOMKEY") == b"a"


def test_all_keys_are_scanned_once_in_any_steps(client: CommandClient) -> None:
    keys = {b"key%d" % number for number in range(300)}
    for key in keys:
        client("SET", key, 1)
    for count in (1, 7, 100, 1000):
        cursor, found = b"0", []
        while True:
            cursor, some = client("SCAN", cursor, "COUNT", count)
            found += some
            if cursor == b"0":
                break
        assert sorted(found) == sorted(keys)
    assert client("SCAN", 0, "TYPE", "hash", "COUNT", 1000) == [b"0", []]
    assert client("SCAN", 5) == "ERR invalid cursor: it is not known any more, begin at 0"
    assert client("DBSIZE") == 300
    assert sorted(client("KEYS", "key1?")) == [b"key%d" % number for number in range(10, 20)]
    assert client("RANDOMKEY") in keys
    assert client("CLUSTER", "COUNTKEYSINSLOT", client("CLUSTER", "KEYSLOT", "key5")) >= 1
    assert client("FLUSHALL") == "OK"
    assert client("DBSIZE") == 0
    assert client("RANDOMKEY") is None


def test_many_small_partitions_are_listed_over_many_turns(monkeypatch: pytest.MonkeyPatch) -> None:
    client = CommandHost(single_node(partitions=32)).client()
    keys = [b"key%d" % number for number in range(1_000)]
    for key in keys:
        client("SET", key, 1)
    turns: list[int] = []
    keys_of = keys_module._keys_of

    def spy(*arguments: Any) -> list[bytes]:
        found = keys_of(*arguments)
        turns[-1] += len(found)
        return found

    begin_turn = client.session.begin_turn

    def begin() -> None:
        turns.append(0)
        begin_turn()

    monkeypatch.setattr(keys_module, "_keys_of", spy)
    monkeypatch.setattr(client.session, "begin_turn", begin)
    assert sorted(client("KEYS", "*")) == sorted(keys)
    assert max(turns) <= keys_module.SLICE_KEYS // 8


@pytest.mark.parametrize("words", ["COUNTKEYSINSLOT 5", "GETKEYSINSLOT 5 1000"])
def test_the_keys_of_a_slot_are_found_over_many_turns(
    words: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = CommandHost(single_node(partitions=1)).client()
    keys = [b"key%d" % number for number in range(300)]
    for key in keys:
        client("SET", key, 1)
    turns: list[int] = []
    begin_turn = client.session.begin_turn

    def looked_at(key: bytes) -> int:
        turns[-1] += 1
        return 5 if key.endswith(b"5") else 6

    def begin() -> None:
        turns.append(0)
        begin_turn()

    monkeypatch.setattr(cluster_module, "SLICE_KEYS", 10)
    monkeypatch.setattr(cluster_module, "slot_of", looked_at)
    monkeypatch.setattr(client.session, "begin_turn", begin)
    found = client("CLUSTER", *words.split())
    assert (found if isinstance(found, int) else len(found)) == 30
    assert max(turns) == 10
    assert sum(turns) == len(keys)


def test_a_tag_is_listed_and_deleted(client: CommandClient) -> None:
    for number in range(5):
        client("SET", f"{{t}}{number}", number)
    client("SET", "{tt}1", 1)
    client("SET", "t", 1)
    assert len(client("TAG", "LIST", "t")) == 10
    assert client("TAG", "LIST", "t", "MATCH", "*3", "COUNT", 5) == [b"{t}3", b"3"]
    assert len(client("TAG", "LIST", "t", "COUNT", 2)) == 4
    assert client("TAG", "DEL", "t") == 5
    assert client("TAG", "LIST", "t") == []
    assert client("EXISTS", "t") == 1
    assert client("EXISTS", "{tt}1") == 1


def test_fractions_are_added_as_redis_shows_them(client: CommandClient) -> None:
    assert client("INCRBYFLOAT", "a", "10.5") == b"10.5"
    assert client("INCRBYFLOAT", "a", "0.1") == b"10.6"
    assert client("INCRBYFLOAT", "a", "-10.6") == b"0"
    assert client("INCRBYFLOAT", "a", "5.0e3") == b"5000"
    assert client("INCRBYFLOAT", "a", "1e-10") == b"5000.0000000001"


def test_answers_of_the_third_version(client: CommandClient) -> None:
    client.session.dialect = RESP3
    client("SET", "{t}a", 1)
    assert client.encoded("GET", "nothing") == b"_\r\n"
    assert client.encoded("MGET", "{t}a", "{t}b") == b"*2\r\n$1\r\n1\r\n_\r\n"
    assert client("TAG", "LIST", "t") == {b"{t}a": b"1"}
    assert client("CONFIG", "GET", "save") == {b"save": b""}
    assert client.encoded("INFO", "cluster").startswith(b"=")


@pytest.mark.parametrize(
    ("pattern", "matching", "others"),
    [
        (b"*", [b"", b"a\n"], []),
        (b"a*c", [b"ac", b"abc", b"acc"], [b"ab", b"acb", b"a"]),
        (b"a?c", [b"abc", b"a\nc"], [b"ac", b"abbc"]),
        (b"[a-c]x", [b"ax", b"cx"], [b"dx", b"x"]),
        (b"[^a]x", [b"bx"], [b"ax"]),
        (b"[]x", [], [b"x", b"]x"]),
        (b"a\\*", [b"a*"], [b"ab"]),
        (b"*a*b*", [b"ab", b"xxaxxbxx"], [b"ba"]),
        (b"*aa", [b"aaa", b"baa"], [b"aab", b"a"]),
        (b".+", [b".+"], [b"ab"]),
    ],
)
def test_patterns_match_as_in_redis(
    pattern: bytes, matching: list[bytes], others: list[bytes]
) -> None:
    compiled = Pattern(pattern)
    assert all(compiled.matches(key) for key in matching)
    assert not any(compiled.matches(key) for key in others)


def test_no_pattern_takes_long() -> None:
    assert not Pattern(b"a*" * 1000 + b"b").matches(b"a" * 10_000)


def test_every_command_is_described(client: CommandClient) -> None:
    listed = {each[0].decode(): each for each in client("COMMAND")}
    assert set(listed) == set(COMMANDS)
    assert listed["mset"][1:6] == [-3, ["write", "denyoom"], 1, -1, 2]
    docs = client("COMMAND", "DOCS", "get", "nonsense")
    assert docs[0] == b"get"
    assert docs[1][:2] == [b"summary", b"The value of a key"]
    assert client("COMMAND", "COUNT") == len(COMMANDS)
    assert client("COMMAND", "INFO", "nonsense") == [None]


def test_a_write_that_is_sent_again_is_done_once(client: CommandClient) -> None:
    def named(number: int, *words: object) -> object:
        assert client("ONCE", "producer", number) == "OK"
        return client(*words)

    assert named(1, "INCRBY", "n", 5) == 5
    assert named(2, "INCR", "n") == 6
    assert named(1, "INCRBY", "n", 5) == 5
    assert client("GET", "n") == b"6"
    assert named(2, "INCR", "n") == 6
    assert client("INCR", "n") == 7
    assert named(3, "APPEND", "a", "xyz") == named(3, "APPEND", "a", "xyz") == 3
    assert named(4, "SET", "a", "b", "NX") is None
    assert client("DEL", "a") == 1
    assert named(4, "SET", "a", "b", "NX") == named(4, "SET", "a", "b", "NX") == "OK"
    assert named(5, "MGET", "a", "b").startswith("CROSSSLOT")  # type: ignore[attr-defined]
    assert named(6, "DEL", "a") == named(6, "DEL", "a") == 1
    assert named(7, "SET", "a", "old") == named(7, "SET", "a", "old") == "OK"
    assert named(8, "SET", "a", "new", "get") == b"old"
    assert named(8, "SET", "a", "new", "get") == DONE
    assert named(9, "GETDEL", "a") == b"new"
    assert named(9, "GETDEL", "a") == DONE
    assert client("ONCE", "", 1).startswith("ERR a producer's name")


def test_a_flush_that_is_sent_again_spares_what_came_between(client: CommandClient) -> None:
    for key in ("a", "b"):
        client("SET", key, 1)
        client("ONCE", "producer", 1)
        assert client("FLUSHDB") == "OK"
    assert client("KEYS", "*") == [b"b"]


def test_a_write_whose_record_is_purged_is_known_to_be_done(client: CommandClient) -> None:
    for word in ("INCR", "BULK DEL"):
        for _ in range(2):
            client("ONCE", word, 1)
            answer = client(*word.split(), "n")
            store = client.session.copy_of(slot_of(b"n"), is_write=True).store
            # As where the copy of another replica was taken: it knows the name alone.
            store.first_sequence = store.last_sequence + 1  # type: ignore[misc]
        assert answer == DONE
        store.first_sequence = 1  # type: ignore[misc]
    assert client("EXISTS", "n") == 0


@pytest.mark.parametrize("words", ["FLUSHDB", "DBSIZE", "KEYS *", "SCAN 0 COUNT 1000"])
def test_a_master_that_may_not_serve_does_not_answer_for_all_keys(words: str) -> None:
    host = CommandHost()
    client = host.client()
    for number in range(20):
        client("SET", f"key{number}", 1)
    host.view.copy(1).is_leading = host.view.copy(1).is_serving = False
    assert client(*words.split()) == CLUSTER_DOWN
    host.view.copy(1).is_leading = host.view.copy(1).is_serving = True
    assert client("DBSIZE") == 20


def test_clients_of_other_tables_are_not_told_of() -> None:
    host = CommandHost()
    client, other, stranger = host.client(), host.client(), host.client(None)
    other.session.user = replace(other.session.user, table="invoices")  # type: ignore[type-var]
    told = client("CLIENT", "LIST").decode().splitlines()
    assert [line.split()[0] for line in told] == [f"id={client.session.number}"]
    assert stranger("CLIENT", "LIST").startswith("NOAUTH")


def test_a_transaction_that_is_sent_again_is_done_once(client: CommandClient) -> None:
    answers = []
    for _ in range(2):
        client("MULTI")
        client("INCR", "n")
        client("ONCE", "producer", 1)
        answers.append(client("EXEC"))
    assert answers == [[1], DONE]
    assert client("GET", "n") == b"1"


def test_a_client_is_told_of_with_all_the_fields_that_redis_has(client: CommandClient) -> None:
    told = dict(field.split("=") for field in client("CLIENT", "INFO").decode().split())
    # Of these some versions of redis-py make numbers, and fail where one is not there.
    wanted = (
        *("id", "age", "idle", "db", "sub", "psub", "multi", "qbuf", "qbuf-free", "obl"),
        *("argv-mem", "oll", "omem", "tot-mem"),
    )
    assert all(int(told[field]) >= -1 for field in wanted)
