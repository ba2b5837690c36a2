"""What pages have in common: ``style.py``."""
