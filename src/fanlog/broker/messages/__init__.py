"""Messages: topics and their partitions, the way in (intake), the turn, the way out (fan-out), and
the cursors of readers. The lowest layer of the broker: it knows no ledgers, groups or queues."""
