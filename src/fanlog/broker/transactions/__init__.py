"""Transactions: all or nothing, once."""
