"""Which servers can be used: pings and pongs, isolation and recovery."""
