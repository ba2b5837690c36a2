"""Pages for readers: ``data.py`` is what they show, ``style.py`` their common look, ``site.py`` writes the interactive report."""
