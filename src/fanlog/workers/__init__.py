"""A broker on all cores: one core process, and worker processes on its ports. A worker is an edge
that reaches the core over a Unix socket, and is run by it."""
