"""The simulation of a cluster: three nodes and an etcd, from one seed."""
