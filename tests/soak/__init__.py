"""Long runs by seed, with tallies that add up over many of them: `python -m tests.soak --help`.

`kinds` says what one seed does, `tallies` keeps what was done, `runner` spreads seeds over
processes, `display` shows progress and the way that is left to the long figures.
"""
