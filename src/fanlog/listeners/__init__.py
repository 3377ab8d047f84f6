"""The network fronts. A listener turns its protocol into questions to the broker, and hands the
broker an outlet for each connection."""
