"""Edges: processes without data of their own in front of one bus. Any number of them serve readers
from mirrors of its topics, and pass on everything else."""
