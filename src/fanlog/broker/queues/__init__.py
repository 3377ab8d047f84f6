"""Work queues: each message to one free worker."""
