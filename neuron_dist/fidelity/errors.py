"""What a report of fidelity is: a warning, or in strict mode an error."""

__all__ = ["FidelityError", "FidelityWarning"]


class FidelityWarning(UserWarning):
    """The real TorchNeuron refuses a call, may refuse it, or computes otherwise, where the simulated one carries it out.

    Python's own filters apply: ``-W error::neuron_dist.fidelity.FidelityWarning`` raises it.
    """


class FidelityError(RuntimeError):
    """In strict mode: the real TorchNeuron refuses this call. Raised before any data has moved."""
