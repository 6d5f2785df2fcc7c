"""Fill the store that a run starts with: from its checkpoint, from an earlier one, or from the seeds."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path

from arpo_verl.errors import ReplayError
from arpo_verl.replay.config import EMPTY, FALLBACK, REFUSE, ReplayConfig
from arpo_verl.replay.store.persistence import MANIFEST, Fingerprint, load_store
from arpo_verl.replay.store.success_store import SuccessStore

logger = logging.getLogger(__name__)


def fill_store(
    store: SuccessStore, places: Sequence[Path], replay: ReplayConfig, fingerprint: Callable[[], Fingerprint]
) -> None:
    """Fill the empty `store` from the first of `places` that can be read, or from `replay.seed_from`.

    Args:
        places: folders of the stores in the checkpoints that a resumed run may continue from, newest first. The first
            is the resumed one's; a folder may be missing. Empty for a new run.
        fingerprint: returns the fingerprint of this run's policy; called only if there is a store to read.

    Raises:
        ReplayError: the seeds of a new run, or with `refuse` a resumed run's store, are damaged or belong to another
            tokenizer, processor or prompt.
    """
    resumes = bool(places)
    sources = [place for place in places if (place / MANIFEST).is_file()]
    if resumes and (not sources or sources[0] != places[0]):
        logger.warning("%s has no replay store", places[0].parent)
    for source in [*sources, *([Path(replay.seed_from)] if replay.seed_from else [])]:
        try:
            load_store(source, fingerprint(), into=store, leave_out_damaged=resumes and replay.on_bad_store == FALLBACK)
        except ReplayError as error:
            if not resumes or replay.on_bad_store == REFUSE:
                raise
            logger.warning("ignored, as replay.on_bad_store=%s says: %s", replay.on_bad_store, error)
            if replay.on_bad_store == EMPTY:
                break
            continue
        if source not in places:  # what the seeds' method kept is of another policy
            store.memory.clear()
        logger.info(
            "the replay store starts with %d successes of %d tasks, from %s", len(store), store.num_tasks, source
        )
        return
    if resumes:
        logger.warning("the replay store starts empty")
