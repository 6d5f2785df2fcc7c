"""Turn model text into typed actions, and actions into a desktop's commands. Pure; model text is never evaluated.

In `agent/rollout/episode.py: play` the model's family reads a reply with one of the grammars here: `ui_tars`,
`computer_use` or `owl`. They share `reply` (bounds, coordinates), `calls`, `keys` and `leftovers` (unread arguments).
The actions are types of `types.py`. `agent/actions/checks.py: check_action` checks those that Python code made.
`desktops/osworld/environment.py: OSWorldEnvironment.step` writes them as pyautogui code with
`agent/actions/pyautogui.py: to_code`.
"""
