"""Transactions, and features built on them."""
