"""Views of the whole broker, for people: metrics, tables of topics and groups, and the overview.
This package only reads the state of other packages."""
