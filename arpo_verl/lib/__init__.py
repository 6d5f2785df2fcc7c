"""Small parts that know nothing of agents and training: files, options, pictures, untrusted text, processes.

`lib/config.py: build_config` makes a validated dataclass of a recipe's section. A room imports what it needs from here;
nothing here imports a room.
"""
