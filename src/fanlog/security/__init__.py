"""Who is let in, and what they may do: keys, users, rules, and the gate that listeners ask. Nothing
here knows the broker; `node.py` plugs it in."""
