"""What several tests use: harnesses, stand-ins, and rows written by hand."""

from pathlib import Path

ROOT = Path(__file__).parents[2]
"""The repository."""
