"""The Python clients: one core without I/O, an asyncio shell, and a blocking front on it."""
