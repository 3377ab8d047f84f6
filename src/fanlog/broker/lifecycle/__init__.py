"""What happens to a topic after its creation: it grows, gets other settings, is truncated,
compacted and cleaned up."""
