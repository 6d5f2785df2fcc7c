"""Screenshots on their way to a rollout engine: each goes once, however many turns show it.

At every turn veRL's client hands the engine all images that the prompt shows, pickled by Ray: 6.2 MB each where they
are 1920x1080, 15 + 14 + ... of them in an episode of 15 turns. A `SentImage` is pickled as a reference into Ray's
object store, where its file lies once; the engine's process gets an image with the same content's UUID, and fetches and
decodes the file only if it processes it: what its cache holds is neither sent nor decoded again. Where another replica
takes over it fetches what it needs.
"""

from __future__ import annotations

from uuid import UUID

import ray

from arpo_verl.images import LazyImage, content_id
from arpo_verl.rollout.episode import decode_in_thread
from arpo_verl.types import Observation, Size


class SentImage(LazyImage):
    """A screenshot as the agent loop holds it: the desktop's own bytes, no pixels.

    Args:
        screenshot: PNG or JPEG that can be decoded.
        size: in pixels.
    """

    def __init__(self, screenshot: bytes, size: Size) -> None:
        self.id = content_id(screenshot)
        super().__init__(size, self.id, lambda: screenshot)
        self._screenshot = screenshot
        self._reference: ray.ObjectRef[bytes] | None = None

    def __reduce__(self) -> tuple[object, ...]:
        if self._reference is None:
            self._reference = ray.put(self._screenshot)
        return _received, (self._reference, self.size, self.id)


def _received(reference: ray.ObjectRef[bytes], size: tuple[int, int], id: UUID) -> LazyImage:
    # Not ray.get: it warns in an asyncio actor, whichever thread calls it, and engines do in one of their own.
    return LazyImage(Size(*size), id, lambda: reference.future().result())


async def take_in(observation: Observation) -> SentImage:
    """The screenshot of a desktop, once it is known to be whole: decoded beside the event loop, and its pixels dropped.

    Raises:
        DesktopLostError: see `arpo_verl.rollout.vision.decode_screenshot`.
    """
    image = await decode_in_thread(observation)
    return SentImage(observation.screenshot, Size(*image.size))
