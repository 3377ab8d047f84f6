"""The client without I/O: bytes and times in, events and bytes out. No socket, loop or clock."""
