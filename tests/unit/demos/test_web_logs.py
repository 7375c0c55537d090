"""The generated web logs are what they say: in order, parseable, the same for the same seed."""

import re

from raftwood_demos.web_logs import START_S, web_logs

LINE = re.compile(
    r'\S+ - - \[(\d\d/\w{3}/\d{4}:\d\d:\d\d:\d\d\.\d{3}) \+0000\] "(GET|POST) (\S+) HTTP/1\.1" '
    r'(\d{3}) (\d+) "[^"]*" "[^"]+" (\d+\.\d)'
)


def test_the_same_seed_makes_the_same_lines_and_another_one_others() -> None:
    lines = list(web_logs(2000, seed=7))
    assert lines == list(web_logs(2000, seed=7))
    assert lines != list(web_logs(2000, seed=8))
    assert len(set(lines)) == 2000


def test_every_line_can_be_parsed_and_minutes_have_errors_and_sizes() -> None:
    found = [LINE.fullmatch(line) for line in web_logs(40_000, seed=1, lines_per_minute=6000)]
    assert all(found)
    statuses = [match[4] for match in found if match]
    assert {"200", "304", "404", "401", "500", "503"} <= set(statuses)
    assert 0.6 < statuses.count("200") / len(statuses) < 0.95
    times = [match[1] for match in found if match]
    assert times == sorted(times)
    assert START_S > 0
