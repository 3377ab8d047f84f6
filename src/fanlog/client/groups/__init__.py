"""A group's member, and requests of operators about groups."""
