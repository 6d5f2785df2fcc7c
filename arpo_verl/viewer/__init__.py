"""Looking at a run: read its folder, serve it to a browser, export it, report on it. Needs neither veRL nor torch."""
