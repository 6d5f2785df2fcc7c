"""From model text to typed actions, and from those to what a desktop is told. Pure; nothing of it is ever evaluated.

`rollout/episode.py: play` parses a reply by `actions/grammars.py: GRAMMARS`, one entry a `gui_agent.grammar`: `ui_tars`
and `computer_use`, both over `reply` (bounds, coordinates), `calls`, `keys` and `leftovers` (what nobody reads). The
actions are types of `types.py`; those made in Python are checked by `actions/checks.py: check_action`.
`environments/osworld/environment.py: OSWorldEnvironment.step` writes them as pyautogui code by
`actions/pyautogui.py: to_code`.
"""
