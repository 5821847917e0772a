"""TorchTitan by YAML: a recipe becomes a ``Trainer.Config``, is checked, and runs on any device and backend.

``source`` reads YAML with line numbers, ``recipe`` splits it into sections, ``fields`` sets TorchTitan's own fields,
``layout`` checks what the fields mean together, ``check`` joins these into one pure function, ``shims`` holds all
that TorchTitan needs on such a machine, ``run`` trains. Importing this package imports neither torch nor TorchTitan.
"""
