"""`fanlog key`, `fanlog user` and `fanlog may`, against a broker that asks for logins."""

from __future__ import annotations
