"""A queue's worker, its jobs, and requests with replies."""
