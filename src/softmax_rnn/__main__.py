"""The command itself as a module, for ``torchrun --nproc-per-node 2 -m softmax_rnn train ...``."""

import sys

from .cli import main

if __name__ == "__main__":
    sys.exit(main())
