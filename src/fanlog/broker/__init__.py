"""Every decision of the broker. It reads and writes through the log, and speaks to readers and
publishers through the interfaces of `ports.py`; it never sees a socket."""
