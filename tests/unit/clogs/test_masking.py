"""What is sensitive is masked, the rest stays as it is, and lines stay lines."""

import json
import re
import time

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from raftwood.base.errors import InvalidConfiguration
from raftwood.clogs.masking import BUILT_IN_RULES, Masking, MaskRule, built_in_rules, is_card_number

ALL = tuple(BUILT_IN_RULES)
CPU_SECONDS_MAX = 2.0
JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiI0MiJ9.c2lnbmF0dXJl-_x"


def masked(line: str, *names: str) -> str:
    return Masking(built_in_rules(names or ALL)).mask_block(line.encode()).decode()


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("paid by 4111111111111111.", "paid by ************1111."),
        ("4111 1111 1111 1111", "**** **** **** 1111"),
        ("4111-1111-1111-1111", "****-****-****-1111"),
        ("5500 0000-0000 0004", "**** ****-**** 0004"),
        ("378282246310005", "***********0005"),
        ("3782 822463 10005", "**** ****** *0005"),
        ("3056-930902-5904", "****-******-5904"),
        ("4222222222222", "*********2222"),
        ("6304 0000 0000 0000 000", "**** **** **** ***0 000"),
        ('{"card":"4111111111111111"}', '{"card":"************1111"}'),
        ("4111 1111 1111 1111 200", "**** **** **** 1111 200"),
        ("12 4111 1111 1111 1111", "12 **** **** **** 1111"),
        ("1000 2000 4111 1111 1111 1111", "1000 2000 **** **** **** 1111"),
        # Two that overlap, since 3000 and the next three groups could be one.
        ("3000 4111 1111 1111 1111", "**** **** **** 1111"),
        ("4111111111111111,5500000000000004", "************1111,************0004"),
    ],
)
def test_card_numbers_keep_their_last_four_digits(line: str, expected: str) -> None:
    assert masked(line, "cards") == expected


@pytest.mark.parametrize(
    "line",
    [
        "4111111111111112",
        "4111 1111 1111 1112",
        "1763377000120",  # a time in milliseconds, and its check digit is right
        "1763377000123456787",
        "0.4111111111111111",
        "41111111111111111111111",
        "order 411111111111",
        "2026-11-17-113041",
        "10.0.0.1 - - [17/Nov/2026:11:57:32 +0000] 200 15320",
        "4111  1111  1111  1111",
        "00000000 0000 0000 0000 0000",
    ],
)
def test_numbers_that_are_no_cards_stay(line: str) -> None:
    assert masked(line, "cards") == line


@given(st.integers(0, 10**18 - 1))
def test_one_check_digit_of_ten_is_right(number: int) -> None:
    digits = [b"%d%d" % (number, last) for last in range(10)]
    assert [is_card_number(each) for each in digits].count(True) == 1
    (right,) = (each for each in digits if is_card_number(each))
    doubled = [int(each) * (1 + place % 2) for place, each in enumerate(reversed(right.decode()))]
    assert sum(each - 9 if each > 9 else each for each in doubled) % 10 == 0


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("key AKIAIOSFODNN7EXAMPLE used", "key AKIA*** used"),
        ("ASIAIOSFODNN7EXAMPLE", "ASIA***"),
        ("AKIAIOSFODNN7EXAMPLEX", "AKIAIOSFODNN7EXAMPLEX"),
        ("XAKIAIOSFODNN7EXAMPLE", "XAKIAIOSFODNN7EXAMPLE"),
        ("Asia/Shanghai akiaiosfodnn7example", "Asia/Shanghai akiaiosfodnn7example"),
    ],
)
def test_ids_of_access_keys_are_masked(line: str, expected: str) -> None:
    assert masked(line, "keys") == expected


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("Authorization: Bearer abc.DEF-_~+/= next", "Authorization: Bearer *** next"),
        ('{"Authorization": "bearer x1"}', '{"Authorization": "bearer ***"}'),
        ("authorization=Basic dXNlcjpwYXNz", "authorization=Basic ***"),
        ('\\"Authorization\\": \\"Basic dXNl\\"', '\\"Authorization\\": \\"Basic ***\\"'),
        (f"jwt {JWT}.", "jwt ***"),
        (f"?jwt={JWT}&x=1", "?jwt=***&x=1"),
        ("bearers of news", "bearers of news"),
        ("eyJ is no token", "eyJ is no token"),
        ("keyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiI0MiJ9", "keyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiI0MiJ9"),
    ],
)
def test_tokens_are_masked(line: str, expected: str) -> None:
    assert masked(line, "tokens") == expected


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("password=hunter2 user=bob", "password=*** user=bob"),
        ("PASSWD: hunter2", "PASSWD: ***"),
        ("db_password = 'hunter 2', x", "db_password = '***', x"),
        ('passphrase="a \\" b" c', 'passphrase="***" c'),
        ("secret := abc", "secret := ***"),
        ("secret => abc", "secret => ***"),
        ("client_secret==abc", "client_secret==***"),
        ("X-Api-Key: abc", "X-Api-Key: ***"),
        ("apikey=abc, next", "apikey=***, next"),
        ("AWS_SECRET_ACCESS_KEY=wJalr/K7+x", "AWS_SECRET_ACCESS_KEY=***"),
        ("GET /x?token=abc&page=2 HTTP/1.1", "GET /x?token=***&page=2 HTTP/1.1"),
        ("Server=x;Password=a,b;Database=z", "Server=x;Password=***;Database=z"),
        ("(token=abc), (token=def)", "(token=***), (token=***)"),
        ("f(token=a)b", "f(token=***"),
        ('{"password": "hun\\"ter", "x": 1}', '{"password": "***", "x": 1}'),
        ('{"password":"open', '{"password":"***'),
        ('{"token": 12345, "a": 1}', '{"token": "***", "a": 1}'),
        ('{"token":1}', '{"token":"***"}'),
        ('{"secret": null, "token": true}', '{"secret": null, "token": true}'),
        ('{"secret": {"a": 1}, "token": [1]}', '{"secret": {"a": 1}, "token": [1]}'),
        ('{"password": ""}', '{"password": ""}'),
        ("{'password': \"it's\", 'token': None}", "{'password': \"***\", 'token': None}"),
        (
            '{"m":"{\\"secret\\":\\"x y\\",\\"a\\":1}"}',
            '{"m":"{\\"secret\\":\\"***\\",\\"a\\":1}"}',
        ),
        ('{"m":"{\\"secret\\":5}"}', '{"m":"{\\"secret\\":\\"***\\"}"}'),
        ('{"m":"password=abc"}', '{"m":"password=***"}'),
        ('{"m":"password=\\"abc\\" x"}', '{"m":"password=\\"***\\" x"}'),
        ('{"m":"password=abc\\\\"}', '{"m":"password=***"}'),
        ("env['PASSWORD'] = 'x'", "env['PASSWORD'] = '***'"),
        ("<token>a b</token>", "<token>***</token>"),
        ("tokens: 5, a key: b, password reset", "tokens: 5, a key: b, password reset"),
        ("monkey=1 keyboard=2 bypass=3", "monkey=1 keyboard=2 bypass=3"),
        ("password:", "password:"),
    ],
)
def test_values_of_secret_fields_are_masked(line: str, expected: str) -> None:
    assert masked(line, "secrets") == expected


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("from joe.doe+x@example.co.uk.", "from ***@***."),
        ("<a@b.com>,c@d.org;", "<***@***>,***@***;"),
        ("?mail=a@b.com&x=1", "?mail=***@***&x=1"),
        ("jürgen@bücher.de", "***@***"),
        ("https://user:pass@host.com/", "https://user:***@***/"),
        ("lodash@4.17.21 @home a@b @x.com", "lodash@4.17.21 @home a@b @x.com"),
    ],
)
def test_addresses_of_mail_are_masked(line: str, expected: str) -> None:
    assert masked(line, "emails") == expected


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("10.0.0.1 - - [", "*** - - ["),
        ("from 255.255.255.255:80", "from ***:80"),
        ("1.2.3.4.", "***."),
        (
            "256.1.1.1 1255.1.1.1 1.2.3.4.5 1.2.3 01.2.3.4",
            "256.1.1.1 1255.1.1.1 1.2.3.4.5 1.2.3 01.2.3.4",
        ),
    ],
)
def test_addresses_of_version_4_are_masked(line: str, expected: str) -> None:
    assert masked(line, "ipv4") == expected


def test_ordinary_lines_stay_as_they_are() -> None:
    block = b"\n".join(
        b'"GET /items/%d?page=%d HTTP/1.1" %d %d "-" "Mozilla/5.0 (X11; rv:109.0) Chrome/120.0"'
        % (number, number % 7, 200 + number % 5, number * 37)
        for number in range(1000)
    )
    masking = Masking(built_in_rules(ALL))
    assert masking.mask_block(block) is block
    assert set(masking.counts.values()) == {0}


def test_what_was_masked_is_counted_by_rule() -> None:
    masking = Masking([*built_in_rules(["cards", "secrets"]), MaskRule("own", r"ssn=\d+")])
    masking.mask_block(b"token=a token=b ssn=1 4111111111111111 x@y.com")
    masking.mask_lines([b"token=c", b"ssn=2", b"ssn=3"])
    assert masking.counts == {"cards": 1, "secrets": 3, "own": 3}


def test_what_two_rules_find_is_masked_once() -> None:
    masking = Masking(built_in_rules(ALL))
    line = f"token=Bearer {JWT} password=a@b.com secret=4111111111111111".encode()
    assert masking.mask_block(line) == b"token=*** *** password=*** secret=***"
    assert masking.counts == {
        "cards": 0,
        "keys": 0,
        "tokens": 1,
        "secrets": 3,
        "emails": 0,
        "ipv4": 0,
    }


FRAGMENTS = (
    *("password", "passwd", "secret", "token", "api_key", "key", "bearer ", "authorization"),
    *(
        "=",
        ":",
        ": ",
        '"',
        '\\"',
        '\\\\\\"',
        "'",
        "&",
        ",",
        ";",
        "]",
        "}",
        ">",
        "</",
        "\\",
        " ",
        "\t",
    ),
    *("basic ", "AKIAIOSFODNN7EXAMPLE", JWT, "eyJ", "@", "a@b.com", "x.y", "10.0.0.1", ".", "-"),
    *("4111111111111111", "4111 1111 1111 1111", "4111 1111", "4", "null", "value", "ü", "\r"),
)
texts = st.lists(st.sampled_from(FRAGMENTS), max_size=12).map("".join)
blocks = st.lists(texts, max_size=8).map("\n".join)


@settings(max_examples=80)
@given(blocks)
def test_a_block_is_masked_as_its_lines_are_one_by_one(text: str) -> None:
    masking = Masking(built_in_rules(ALL))
    block = text.encode()
    lines = block.split(b"\n")
    alone = [masking.mask_block(line) for line in lines]
    assert masking.mask_block(block) == b"\n".join(alone)
    assert masking.mask_lines(lines) == alone


@example({"password": "\\"})
@example({"password": 'a\\\\"\\', "text": "\\"})
@given(st.dictionaries(st.sampled_from(["password", "user", "api_key", "text"]), st.text()))
def test_json_stays_json(record: dict[str, str]) -> None:
    expected = {
        name: "***" if value and name in ("password", "api_key") else value
        for name, value in record.items()
    }
    for depth in range(3):
        text = json.dumps(record)
        for _ in range(depth):
            text = json.dumps({"message": text})
        line = masked(text, "secrets")
        for _ in range(depth):
            line = json.loads(line)["message"]
        # What is deeper than the deepest that is understood need not be masked well, nor broken.
        if depth < 2 or all(re.fullmatch(r"[\w ]*", value) for value in record.values()):
            assert json.loads(line) == expected


@given(st.lists(st.text("ab \n@.=:", max_size=20)))
def test_lines_with_newlines_in_them_stay_one(texts: list[str]) -> None:
    masking = Masking([*built_in_rules(ALL), MaskRule("own", "a+b")])
    lines = [text.encode() for text in texts]
    found = masking.mask_lines(lines)
    assert [line.count(b"\n") for line in found] == [line.count(b"\n") for line in lines]
    assert found == [masking.mask_block(line) for line in lines]


def test_a_users_rule_replaces_groups() -> None:
    masking = Masking([MaskRule("ids", r"(?P<kind>user|order)-(\d)\d+", r"\g<kind>-\2…")])
    assert masking.mask_block(b"user-123 order-45 item-6") == "user-1… order-4… item-6".encode()
    assert Masking([MaskRule("ids", r"\d+")]).mask_lines([b"a1", b"22b"]) == [b"a***", b"***b"]


@pytest.mark.parametrize(
    "pattern",
    [
        r"x[^;]*",
        r"x\s*y?",
        r"(?s)x.*",
        r"x(?:.|\n)+",
        r"\Ax[a-z]*",
        r"[a-z]+\Z",
        r"^x.",
        r"[a-z]$",
        r"(?<=\s)y",
        r"(?<![a-z])z",
        r"x(?!\n)",
        r"x(?=\s)",
        r"\Bz",
        r"\by",
        r"x\n",
        r"\n+",
    ],
)
@settings(max_examples=20)
@given(st.lists(st.text("xyz; ", max_size=6), max_size=6))
def test_a_users_rule_sees_one_line_at_a_time(pattern: str, texts: list[str]) -> None:
    lines = [text.encode() for text in texts]
    rule = MaskRule("own", pattern, "<>")
    # One is used again and again, as a running client does.
    masking = Masking([rule])
    for _ in range(2):
        found = masking.mask_lines(lines)
        assert found == [Masking([rule]).mask_block(line) for line in lines]
        assert found == [re.sub(pattern.encode(), b"<>", line) for line in lines]


def test_a_rule_that_would_join_lines_is_counted_as_if_it_had_not_tried() -> None:
    masking = Masking([MaskRule("own", r"x[^;]*")])
    assert masking.mask_block(b"x1;\nx2\nx3;x4\nx5") == b"***;\n***\n***;***\n***"
    assert masking.counts == {"own": 5}


def test_no_replacement_makes_a_line_into_two() -> None:
    for replacement in ("a\nb", r"a\nb", r"a\012b"):
        masking = Masking([MaskRule("own", "x", replacement)])
        assert masking.mask_lines([b"x", b"y"]) == [b"a b", b"y"]


@pytest.mark.parametrize(
    ("rule", "said"),
    [
        (MaskRule("broken", "(a"), "'broken' cannot be used: missing \\)"),
        (MaskRule("broken", "a", r"\1"), "'broken' cannot be used: invalid group reference"),
        (MaskRule("broken", "a", r"\g<x>"), "'broken' cannot be used: unknown group name"),
        (MaskRule("empty", "a*"), "'empty' matches the empty text"),
        (MaskRule("empty", r"\b"), "'empty' matches the empty text"),
        (MaskRule("empty", r"(?=a)"), "'empty' matches the empty text"),
    ],
)
def test_a_users_rule_that_cannot_be_used_is_named(rule: MaskRule, said: str) -> None:
    with pytest.raises(InvalidConfiguration, match=said):
        Masking([rule])


def test_an_empty_match_that_nobody_foresaw_changes_nothing() -> None:
    masking = Masking([MaskRule("own", "(?=z)|y")])
    assert masking.mask_block(b"xyz") == b"x***z"
    assert masking.counts == {"own": 1}


def test_names_of_rules_are_checked() -> None:
    with pytest.raises(InvalidConfiguration, match="no masking rule 'card': choose from cards, "):
        built_in_rules(["card"])
    with pytest.raises(InvalidConfiguration, match="two masking rules are called 'cards'"):
        Masking([*built_in_rules(["cards"]), MaskRule("cards", "x")])


def test_without_rules_nothing_changes() -> None:
    masking = Masking([])
    lines = [b"token=a", b""]
    assert masking.mask_lines(lines) == lines
    assert masking.mask_lines([]) == []
    assert masking.counts == {}


@pytest.mark.parametrize(
    "part",
    [
        *("4", "4111 ", "a.", "a@", "1.", "token=", 'token="', "token=a,", '"token":\\"', "eyJ"),
        *("bearer ", "<token>", "token>", "api_key=\\", "pass", "a@a.", "1.1.1.1.", "4-"),
    ],
)
def test_the_time_for_a_line_grows_with_its_length_alone(part: str) -> None:
    """Of so long a line each byte would be looked at a hundred thousand times."""
    line = (part * (100_000 // len(part))).encode()
    masking = Masking(built_in_rules(ALL))
    began = time.process_time()
    masking.mask_block(line)
    assert time.process_time() - began < CPU_SECONDS_MAX
