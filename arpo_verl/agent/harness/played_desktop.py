"""The desktop as a program has it: actions alone. Set-up and verdict are the episode's."""

from __future__ import annotations

import asyncio
import dataclasses
import time
from collections.abc import Awaitable
from typing import TYPE_CHECKING, TypeVar, cast

from arpo_verl.agent.actions.checks import check_action
from arpo_verl.agent.harness.client import Waits
from arpo_verl.agent.rollout.episode import LeasedDesktop, Turn
from arpo_verl.errors import ConfigError, DesktopEndedError, DesktopError, HarnessError
from arpo_verl.types import Action, Fail, Finish, GuestAnswer, GuestRequest, Observation, Size, StopReason

if TYPE_CHECKING:
    from arpo_verl.agent.harness.guest_proxy import GuestDesktop

T = TypeVar("T")


class PlayedDesktop:
    """A leased desktop, set up for the task. Whatever ends it ends the episode, also where a program goes on.

    Args:
        turns: of the episode; an action is put down to the newest.
        ended: the end of the episode.
    """

    def __init__(
        self,
        desktop: LeasedDesktop,
        observation: Observation,
        screen: Size,
        turns: list[Turn],
        ended: asyncio.Future[StopReason],
    ):
        self.observation = observation
        """What it showed last."""
        self.screen = screen
        """Its size in pixels."""
        self.said: StopReason | None = None
        """What the program said by `Finish` or `Fail`."""
        self.waits = Waits()
        self._desktop = desktop
        self._turns = turns
        self._ended = ended

    async def step(self, action: Action) -> Observation:
        """Do one action and look. Behind a `Finish` or a `Fail` none is done.

        Raises:
            ActionError: no desktop can do it.
            DesktopError, DesktopEndedError: the desktop failed, or the policy ended it; so does the episode.
            HarnessError: the episode is over, and its desktop may be under evaluation.
        """
        self._check_open()
        if self.said is not None:
            return self.observation
        check_action(action, self.screen)
        began = time.perf_counter()
        self.observation = await self.watched(self._desktop.step(action))
        if self._turns:
            newest = self._turns[-1]
            seconds = newest.desktop_s + time.perf_counter() - began
            self._turns[-1] = dataclasses.replace(newest, actions=(*newest.actions, action), desktop_s=seconds)
        if isinstance(action, (Finish, Fail)):
            self.said = StopReason.FINISHED if isinstance(action, Finish) else StopReason.FAILED
        return self.observation

    async def look(self) -> Observation:
        """Look, for a program outside; see `DesktopEnvironment.look`."""
        self._check_open()
        self.observation = await self.watched(cast("GuestDesktop", self._desktop).look())
        return self.observation

    async def ask(self, request: GuestRequest) -> GuestAnswer:
        """Pass a request of OSWorld's guest protocol on, for a program outside; see `DesktopEnvironment.ask`."""
        self._check_open()
        return await self.watched(cast("GuestDesktop", self._desktop).ask(request))

    async def watched(self, call: Awaitable[T]) -> T:
        """Await a call of the leased desktop; a fault of it ends the episode."""
        try:
            with self.waits.counted():
                return await call
        except (ConfigError, DesktopError, DesktopEndedError) as error:
            if not self._ended.done():
                self._ended.set_exception(error)
            raise

    def _check_open(self) -> None:
        if self._ended.done():
            raise HarnessError("the episode is over, and its desktop is not the program's any more")
