"""LogHub on three stores behind a gateway against Kafka; see __main__ for its command."""
