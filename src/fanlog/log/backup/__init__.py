"""Backups of a data folder: making a point, keeping it, restoring it, and checking checksums."""
