"""The overview shows a run's results at a glance, on the page of `arpo-verl view` and in `arpo-verl report`'s file.

`tools/viewer/overview/content.py: overview_document` asks the modules of its subjects (`success`, `replay`, `costs`,
`samples`) for their part of the run; `tools/viewer/assets/page_overview.js` draws it.
"""
