"""Several nodes as one: who is the primary, who follows, and who decides it.

`follower_decisions` and `primary_decisions` have the rules, as pure functions over a snapshot.
`etcd` keeps the records that nodes agree on, and `mark` what a data folder knows about its cluster.
Consensus is etcd's: there is no election here.
"""
