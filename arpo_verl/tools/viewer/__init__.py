"""Beside a training run: this shows a run in a browser, as an export or as a report, without veRL and torch.

`arpo-verl view` opens a run (`records/run.py: open_run`) or a folder of runs and calls
`tools/viewer/server.py: build_server`, or `tools/viewer/export.py: export_run` for a folder that opens from disk. Both
give the page the same documents, made in `documents`, `overview/` and `runs`; `access` controls who may read them. The
page is `assets/`, as the browser gets it: `app.js` chooses among the `page_*.js`. `report` writes the overview as one
file.
"""
