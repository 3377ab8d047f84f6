"""An operator's view of a running broker: counters, metrics and traces."""
