"""Consumer groups: members that share partitions."""
