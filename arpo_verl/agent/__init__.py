"""The agent: model text in, actions out, one episode. Needs neither veRL nor Ray.

`agent/rollout/episode.py: play` is the loop. `models/` has what each family of models is shown and how it replies,
`actions/` turns its text into typed actions, and `harness/` lets a user's own program play.
"""
