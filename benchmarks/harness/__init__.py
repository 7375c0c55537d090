"""What the benchmarks of clusters share: three processes of a system, and a load on them."""
