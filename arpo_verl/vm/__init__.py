"""Beside a training run: desktops in virtual machines of their own, each a clone of one that has booted already.

`image` is what a machine starts from, `build` makes one of Debian's packages. `machine` runs one QEMU process; the same
devices boot cold, become a template (`template`) or start as its clone. Its main way is `vm/boot.py: start`, behind
`vm/provider.py: QemuProvider`, which OSWorld's client talks to. Experimental: docs/vm-desktops.md.
"""
