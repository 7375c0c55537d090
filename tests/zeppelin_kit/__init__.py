"""What tests of Zeppelin share."""
