"""The partition log: tail, segments, index, recovery, retention, journal. Files, and no network."""
