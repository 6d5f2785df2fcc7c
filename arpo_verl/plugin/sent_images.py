"""Send each screenshot to a rollout engine only once, however many turns show it.

At every turn veRL's client gives the engine all images of the prompt, pickled by Ray: 6.2 MB each at 1920x1080, and
15 + 14 + ... of them in an episode of 15 turns. A `SentImage` is pickled as a reference into Ray's object store, which
holds its file once. The engine's process gets an image with the content's UUID. It fetches and decodes the file only to
process it; for an image in its cache it does neither. Another replica that takes over fetches what it needs.
"""

from __future__ import annotations

from uuid import UUID

import ray

from arpo_verl.agent.rollout.episode import decode_in_thread
from arpo_verl.lib.images import LazyImage, content_id
from arpo_verl.types import Observation, Size


class SentImage(LazyImage):
    """A screenshot in the agent loop: the desktop's own bytes, no pixels.

    Args:
        screenshot: a PNG or JPEG that can be decoded.
        size: its size in pixels.
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
    # Not ray.get: it warns in an asyncio actor, whichever thread calls it; engines call this in their own thread.
    return LazyImage(Size(*size), id, lambda: reference.future().result())


async def take_in(observation: Observation) -> SentImage:
    """Take a desktop's screenshot: decode it beside the event loop to check that it is whole, and drop the pixels.

    Raises:
        DesktopLostError: see `arpo_verl.agent.rollout.vision.decode_screenshot`.
    """
    image = await decode_in_thread(observation)
    return SentImage(observation.screenshot, Size(*image.size))
