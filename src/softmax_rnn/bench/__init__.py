"""Speed and memory, side by side: every number is a ratio to something measured in the same interleaved run."""
