"""Beside a training run: from a configuration of the ARPO reference, or of EasyR1, to a recipe.

`migration/script.py: read_script` reads the command of a shell script without running it,
`migration/settings.py: read_settings` lays its overrides over the YAML and their defaults, and
`migration/recipe.py: convert` says each setting in a recipe's terms by the table `migration/keys.py: KEYS`, or names it
as dropped with the reason.

What stands here of the two projects was read from their public sources: JIA-Lab-research/ARPO (7489ae3, May 2025) and
hiyouga/EasyR1 (every version up to July 2026).
"""
