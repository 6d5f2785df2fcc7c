"""Scripted solutions of OSWorld tasks through the GUI: a module for each domain, each with `SOLUTIONS`, id -> solution.

The ids are here, in the tests' room, and nowhere in the library: nothing there knows one task from another.
"""
