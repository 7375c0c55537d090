"""Where leases are kept; each is a `LeaseStore`, and one test suite runs them alike."""
