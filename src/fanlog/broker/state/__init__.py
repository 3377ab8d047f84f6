"""State that must survive a restart, in ledgers: positions, names of producers, accounts, the audit
log, losses of readers. Above messages, below groups, queues and transactions."""
