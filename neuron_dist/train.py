"""``torchrun --nproc-per-node 4 -m neuron_dist.train --recipe llama3_debug``: trains a TorchTitan recipe."""

from neuron_dist.titan.run import main
from neuron_dist.titan.shims import exit_process

if __name__ == "__main__":
    exit_process(main())
