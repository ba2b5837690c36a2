"""Attention in its equivalent forms. ``reference`` is the specification; the other forms are compared with it."""
