"""The paper, executable: one module per figure, with its runs and its claims; verdicts are computed from what was run."""
