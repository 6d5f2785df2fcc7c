"""Beside a training run: a look at it, served to a browser, exported or as a report. Needs neither veRL nor torch.

`arpo-verl view` opens the run (`records/run.py: open_run`) or a folder of runs and calls
`viewer/server.py: build_server`, or `viewer/export.py: export_run` for a folder that opens from disk. Both give the
page the same documents, made in `documents`, `overview/` and `runs`; `access` says who may ask. The page is `assets/`,
as the browser gets it: `app.js` chooses among the `page_*.js`. `report` writes the overview as one file.
"""
