"""The properties of `make test` without a ceiling: `python -m tests.soak --help`.

`kinds` says what one seed does. `tally` keeps what was run, at which commit, in `tally.json`, which
is committed. `record` writes the totals into docs/assurance.md. `runner` spreads seeds over
processes.
"""
