"""A group's member, and what operators ask about groups."""
