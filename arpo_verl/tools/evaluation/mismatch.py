"""Finds mismatches in a server's answers: screenshots resized again, or other coordinates. Pure."""

from __future__ import annotations

import json
import logging
import math
from collections.abc import Sequence

from arpo_verl.agent.models.family import load_family
from arpo_verl.agent.rollout.vision import ImageGeometry
from arpo_verl.errors import ActionParseError, ConfigError
from arpo_verl.types import Point, Size

logger = logging.getLogger(__name__)

MARK_TOKENS = 64
"""Most tokens of a chat's marks around a reply and a screenshot; Qwen's template has 11."""
CHANCE = 1e-6
"""We warn when the probability that all of a model's positions are up to 1000 by chance is below this."""
_THOUSAND = 1000


class PromptGrowth:
    """Compares the growth of a conversation's prompts with the tokens that a screenshot should add.

    Args:
        geometry: how the model's processor resizes screenshots.
    """

    def __init__(self, geometry: ImageGeometry):
        self._geometry = geometry
        self._before: tuple[int, int, int] | None = None

    def check(self, prompt_tokens: int, reply_tokens: int, screens: Sequence[Size], first: int) -> None:
        """Check a server's answer.

        Args:
            prompt_tokens: tokens of the request, by the server's count; 0 if it does not say.
            reply_tokens: most tokens of its reply.
            screens: sizes of all screenshots of the episode up to this request.
            first: index of the first one that was sent.

        Raises:
            ConfigError: the model saw the newest screenshots in another size than we sent.
        """
        before, self._before = self._before, (first, prompt_tokens, reply_tokens)
        if prompt_tokens == 0:
            return
        sent = screens[first:]
        if before is not None and before[0] == first and before[1] > 0:
            least, grown = self._geometry.num_tokens(screens[-1]), prompt_tokens - before[1]
            if not least <= grown <= least + before[2] + MARK_TOKENS:
                why = f"prompts grew by {grown:,} tokens, with at most {before[2]:,} of a reply among them"
                raise self._mismatch(screens[-1], why)
        elif prompt_tokens < sum(map(self._geometry.num_tokens, sent)):
            raise self._mismatch(screens[-1], f"a prompt with {len(sent)} of them has {prompt_tokens:,} tokens")

    def _mismatch(self, screen: Size, why: str) -> ConfigError:
        image, tokens = self._geometry.image_size(screen), self._geometry.num_tokens(screen)
        limits = {"min_pixels": self._geometry.min_pixels, "max_pixels": self._geometry.max_pixels}
        return ConfigError(
            f"the server seems to resize our screenshots of {image.width}x{image.height} pixels, so that clicks would "
            f"miss: each should have {tokens:,} tokens, but {why} (its usage.prompt_tokens). Start it with the limits "
            f"of this evaluation, as `vllm serve --mm-processor-kwargs '{json.dumps(limits)}'`, or give the evaluation "
            "the server's limits: --min-pixels and --max-pixels, or --processor FOLDER"
        )


class CoordinateRange:
    """Warns once if a model that should write pixels never writes one above 1000, as if it wrote thousandths.

    Args:
        family: name of the model's family.
    """

    def __init__(self, family: str):
        self._family = load_family(family)
        self._name = family
        self._is_open = self._family.coordinates == "pixels"
        self._positions = 0
        self._log_chance = 0.0

    def saw(self, reply: str, image: Size) -> None:
        """Check a reply.

        Args:
            reply: its text.
            image: the size of the screenshot that its positions are in.
        """
        if not self._is_open or image.width <= _THOUSAND + 1:
            return
        try:
            actions = self._family.parse(reply, image, image).actions
        except ActionParseError:
            return
        for point in (getattr(action, name, None) for action in actions for name in ("point", "start", "end")):
            if isinstance(point, Point):
                self._take(point, image)

    def _take(self, point: Point, image: Size) -> None:
        if max(point) > _THOUSAND:
            self._is_open = False
        self._positions += 1
        self._log_chance += math.log(_THOUSAND / image.width)
        if self._is_open and self._log_chance < math.log(CHANCE):
            self._is_open = False
            logger.warning(
                "none of the first %d positions is above 1000, in screenshots of %dx%d pixels: the model seems to "
                "write thousandths, but gui_agent.model_family=%s reads pixels, so clicks miss; name the model's own "
                "family, such as --agent model_family=qwen3_vl or ui_tars_10",
                self._positions,
                *image,
                self._name,
            )
