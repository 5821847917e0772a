"""The command line and the launcher. The top of the house: imports ``neuron_dist``, is imported by nothing."""
