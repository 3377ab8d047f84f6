"""Edges: processes without stored data in front of one bus. Any number of edges serve readers from
mirrors of its topics, and forward everything else."""
