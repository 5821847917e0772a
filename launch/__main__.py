"""``python -m launch`` is ``neuron-dist``."""

from launch.cli import main

main(prog_name="neuron-dist")
