"""What users of redis-py do, for whatever version of it is found first."""
