"""Workers that share shards by leases, beside a consumer group of Kafka."""
