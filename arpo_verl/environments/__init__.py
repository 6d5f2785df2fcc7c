"""What a desktop is to everybody else: `environments/base.py: DesktopEnvironment`, reset, acted on, evaluated.

`environments/factory.py: environment_factory` makes the one that the recipe's section `environment` (`config`) names:
called in the pool's workers, and by `threaded` for a desktop of one's own, `arpo_verl.make_desktop` and
`arpo-verl try`. A recipe may also name a user's `desktop/machine_provider.py: MachineProvider`, which it gives to
OSWorld's client. `osworld/` has the real one, `fake` one that plays a script, for tests. `providers` is the table of
the OSWorld client's providers, `provider_checks` says what one lacks here.
"""
