"""Topics whose messages are all of one type."""
