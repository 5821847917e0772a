"""How much memory a recipe needs on each rank, without running it.

``schedule`` says how many micro-batches a pipeline rank has under way, ``stages`` which modules stand on which rank,
``live`` keeps account of the bytes that live, ``trace`` runs one forward and backward pass of a stage with TorchTitan's
own parallelized modules on fake tensors, ``memory`` puts these together for all ranks.
"""
