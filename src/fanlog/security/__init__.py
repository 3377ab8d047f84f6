"""Authentication and permissions: keys, users, rules, and the gate that listeners ask. Nothing here
knows the broker; `node.py` plugs it in."""
