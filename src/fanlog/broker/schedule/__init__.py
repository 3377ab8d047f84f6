"""Messages that wait for their time, and schedules that make them."""
