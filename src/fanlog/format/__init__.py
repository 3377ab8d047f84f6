"""Bytes in, values out. Nothing here knows of a socket, a file, a clock or asyncio."""
