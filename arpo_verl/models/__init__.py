"""Families of models: what belongs together of the models that a policy can be. `gui_agent.model_family` names one.

`family.py` says what a family is and loads one by its name. Each of the others whose name is a family's makes one:
`ui_tars_15`, `ui_tars_10`, `ui_tars_2`, `qwen25_vl`, `qwen3_vl`, `qwen35`, and `small`, ours. `messages` and
`official_words` are what they are made of. docs/model-families.md shows how to add one from outside the package.
"""
