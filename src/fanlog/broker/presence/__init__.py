"""The users who are present in each topic, over all processes of a bus."""
