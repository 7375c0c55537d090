"""Plans for a cluster: who is to have what, as changes that are made as a whole or not at all.

Pure functions of a topology, with the fewest moves: start reading at `orders`.
"""
