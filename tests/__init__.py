"""The tests."""

PATIENCE = 900  # seconds until something hangs, and for nothing else: a busy machine may take many times as long as an idle one
