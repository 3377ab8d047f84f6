"""A cluster that is treated badly: `python -m tests.cluster.chaos --help`."""
