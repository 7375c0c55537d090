"""LogHub's gateway: what stands between clients and the seams that keep their data."""
