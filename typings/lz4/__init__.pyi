# The package has no types. Here is what Fanlog uses of it.
