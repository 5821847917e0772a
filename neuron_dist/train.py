"""``torchrun --nproc-per-node 4 -m neuron_dist.train --recipe llama3_debug``: trains a TorchTitan recipe."""

import sys

from neuron_dist.titan.run import main

if __name__ == "__main__":
    sys.exit(main())
