"""From model text to typed actions, and from those to what a desktop is told. Pure; nothing of it is ever evaluated.

`rollout/episode.py: play` has a reply parsed by the model's family, over one of the grammars here: `ui_tars` and
`computer_use`, both over `reply` (bounds, coordinates), `calls` and `keys`. The actions are types of `types.py`.
`environments/osworld/environment.py: OSWorldEnvironment.step` writes them as pyautogui code by
`actions/pyautogui.py: to_code`.
"""
