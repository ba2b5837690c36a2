"""Pages for readers: ``style.py`` is their common look, ``site.py`` writes the interactive report of a reproduction."""
