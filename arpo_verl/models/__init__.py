"""Families of models: what belongs together of the models that a policy can be. `gui_agent.model_family` names one.

`models/family.py: ModelFamily` says what a family is, `models/family.py: load_family` finds one by its name:
`ui_tars_15`, `ui_tars_10`, `ui_tars_2`, `qwen25_vl`, `qwen3_vl`, `qwen35`, `gui_owl`, `opencua` (for evaluation alone),
and `small`, ours. `messages`, `official_words`, `qwen` and `ui_tars` are what they are made of. docs/model-families.md
shows how to add one.
"""
