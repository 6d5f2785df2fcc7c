"""Desktops in virtual machines, each a clone of one that has already booted.

A machine starts from an image (`image`); `build` makes one of Debian's packages. `machine` runs one QEMU process; the
same devices boot cold, become a template (`template`) or start as its clone. The main entry is
`desktops/vm/template.py: start`, behind `desktops/vm/provider.py: QemuProvider`, which OSWorld's client uses. All of it
is experimental: docs/vm-desktops.md.
"""
