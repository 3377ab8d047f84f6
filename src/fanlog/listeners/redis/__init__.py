"""The Redis listener: Redis Pub/Sub over the broker's topics. A channel is a topic, and a Redis
push is a view of it, rendered once for all its subscribers."""
