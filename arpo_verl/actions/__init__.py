"""From model text to typed actions, and from those to a desktop's commands. Pure; nothing of it is ever evaluated.

`rollout/episode.py: play` has a reply read by the model's family, over one of the grammars here: `ui_tars`,
`computer_use` and `owl`, all over `reply` (bounds, coordinates), `calls`, `keys` and `leftovers` (what nobody reads).
The actions are types of `types.py`; those made in Python are checked by `actions/checks.py: check_action`.
`environments/osworld/environment.py: OSWorldEnvironment.step` writes them as pyautogui code by
`actions/pyautogui.py: to_code`.
"""
