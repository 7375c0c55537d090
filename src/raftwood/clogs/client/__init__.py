"""The shipping client: takes lines by file name, and has them stored."""
