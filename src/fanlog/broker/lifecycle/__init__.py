"""Changes of a topic after its creation: growth, settings, truncation, compaction and cleanup."""
