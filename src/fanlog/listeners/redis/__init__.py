"""The Redis listener: Redis Pub/Sub over the broker's topics. A channel is a topic, and what Redis
pushes is a view of it, rendered once for all its subscribers."""
