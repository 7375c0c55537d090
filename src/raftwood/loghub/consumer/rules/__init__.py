"""What a worker does about leases, as pure functions and one state machine: no I/O, no clock."""
