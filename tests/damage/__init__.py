"""What becomes of damaged files: every class of file × damage × how many processes it hits.

`python -m tests.damage` prints the table; `--record` writes it into docs/repair.md. A cell runs the
real code on simulated disks, twice: once all processes had everything and were killed, once one had
stood still for a while and the others were stopped in order. It is called by what is observed.
`--real` does the same with real processes, on copies of real folders. That takes hours: parts of
the table may be run one by one, `--record` joins them, and `--missing` runs those that it lacks.
"""
