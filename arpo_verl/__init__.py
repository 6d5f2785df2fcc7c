"""ARPO for stock veRL: train vision-language agents on real desktops by reinforcement learning with replay."""

__version__ = "0.1.0"
