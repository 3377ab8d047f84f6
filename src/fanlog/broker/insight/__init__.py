"""Views of the whole broker for people: metrics, tables of topics and groups, the overview. It
reads what other packages hold, and changes nothing."""
