"""Spans of the broker: kept in memory, and exported with OpenTelemetry where that is installed."""
