"""The store that a run begins with: its checkpoint's, an earlier one's, the seeds, or an empty one."""

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
        places: where the checkpoints that a resumed run may go on from keep their stores, newest first: the first is
            the resumed one's, and a place may be missing. Empty where a run begins.
        fingerprint: of this run's policy; asked only where there is a store to read.

    Raises:
        ReplayError: the seeds of a run that begins, or with `refuse` a resumed run's store, are damaged or belong to
            another tokenizer, processor or prompt.
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
            logger.warning("passed over, as replay.on_bad_store=%s asks for: %s", replay.on_bad_store, error)
            if replay.on_bad_store == EMPTY:
                break
            continue
        logger.info(
            "the replay store begins with %d successes of %d tasks, from %s", len(store), store.num_tasks, source
        )
        return
    if resumes:
        logger.warning("the replay store begins empty")
