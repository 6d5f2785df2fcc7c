"""The families of models that a policy can be. `gui_agent.model_family` names one.

`agent/models/family.py: ModelFamily` defines a family, and `agent/models/family.py: load_family` finds one by its name:
`ui_tars_15`, `ui_tars_10`, `ui_tars_2`, `qwen25_vl`, `qwen3_vl`, `qwen35`, `gui_owl`, and
our own `small`. They are built from `messages`, `official_words`, `qwen` and `ui_tars`. docs/model-families.md
shows how to add one.
"""
