"""The client for plain, blocking code: `fanlog.sync.connect(...)`."""

from fanlog.client.sync import Client, Subscription, connect

__all__ = ["Client", "Subscription", "connect"]
