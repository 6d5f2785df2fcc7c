"""Beside a training run: this package converts a configuration of the ARPO reference, or of EasyR1, to a recipe.

`tools/migration/script.py: read_script` reads the command of a shell script without running it.
`tools/migration/settings.py: read_settings` applies its overrides to the YAML and the defaults.
`tools/migration/recipe.py: convert` translates each setting by the table `tools/migration/keys.py: KEYS`, or lists it
as dropped with the reason. Here "theirs" means: of the two projects.

All facts about them come from their public sources: JIA-Lab-research/ARPO (7489ae3, May 2025) and hiyouga/EasyR1 (every
version up to July 2026).
"""
