"""The paper, executable: every figure with its runs and its claims; verdicts are computed from what was run."""
