"""Transactions, and what is built of them."""
