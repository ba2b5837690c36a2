"""Which attention for how much memory: quality against what it costs, and claims of our own about expressiveness."""
