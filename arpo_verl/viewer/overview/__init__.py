"""What a run came to, at a glance: one document for the page of `arpo-verl view` and the file of `arpo-verl report`.

`viewer/overview/content.py: overview_document` asks the modules of its subjects (`success`, `replay`, `costs`,
`samples`) for their part of the run; `viewer/assets/page_overview.js` draws it.
"""
