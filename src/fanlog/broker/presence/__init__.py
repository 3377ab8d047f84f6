"""Who is in which topic, on all processes of a bus."""
