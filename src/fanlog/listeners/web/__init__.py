"""The web listener: browsers and plain HTTP clients read and write the same topics."""
