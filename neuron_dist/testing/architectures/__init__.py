"""Every architecture of transformers on the device: tiny configurations, inputs, and the comparison with the CPU."""
