"""The interface of a desktop, `desktops/base.py: DesktopEnvironment`: reset, act, evaluate.

`desktops/factory.py: environment_factory` makes the desktop that the recipe's section `environment` (`config`)
names. The pool's workers call it, and `threaded` does for `arpo_verl.make_desktop` and `arpo-verl try`. A recipe may
also name a user's `desktops/machine_provider.py: MachineProvider`, which we give to OSWorld's client.
`osworld/` has the real desktops; `fake` has one that plays a script, for tests. `providers` lists the OSWorld client's
providers, and `provider_checks` finds what one of them lacks on this machine.
"""
