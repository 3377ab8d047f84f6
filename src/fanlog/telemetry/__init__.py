"""What an operator sees of a running broker: counters, metrics and traces."""
