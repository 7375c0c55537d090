"""What can be consumed: logstores of LogHub, topics of Kafka."""
