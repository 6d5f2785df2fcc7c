"""The bound on a host's boots, on hosts that bear more or less, over simulated time."""

import asyncio
import random
from statistics import median

import pytest

from arpo_verl.pool.boot_bound import FIRST, IN_A_ROW, BootBound


class Host:
    """Bears `bears` boots at full speed; shares itself among more. A share of its boots fails whatever it bears."""

    def __init__(self, bears, fixed=None, fails=0.0):
        self.bears, self.bound, self.fails = bears, BootBound("a", fixed), fails
        self.running = self.most = 0
        self.limits = []
        self._random = random.Random(0)

    async def boot(self):
        async with self.bound:
            self.running += 1
            self.most = max(self.most, self.running)
            await asyncio.sleep(0)  # let the others in that may come
            slower = max(1.0, self.running / self.bears)
            await asyncio.sleep(0)
            seconds = 60 * self._random.lognormvariate(0, 0.4) * slower
            if self._random.random() < self.fails:
                self.bound.failed()
            else:
                self.bound.took(seconds)
            self.running -= 1
            self.limits.append(self.bound.limit)

    def boot_all(self, number, desktops=None):
        """So many boots, by so many desktops again and again; by default each by another."""

        async def boot_again(times):
            for _ in range(times):
                await self.boot()

        async def boots():
            each = desktops or number
            await asyncio.gather(*(boot_again(number // each) for _ in range(each)))

        asyncio.run(boots())
        return self.bound.limit


@pytest.mark.parametrize(("bears", "least", "most"), [(4, 8, 12), (16, 12, 24), (64, 48, 96)])
def test_the_bound_follows_what_a_host_bears(bears, least, most):
    host = Host(bears)
    host.boot_all(3000)
    assert least <= median(host.limits[1000:]) <= most
    assert host.most <= 3 * most, "it tries others, and comes back"


def test_the_bound_follows_a_host_of_which_all_desktops_may_boot_at_once():
    """A trial of as many as there are, or more, is judged too: nobody waits in it."""
    host = Host(16)
    host.boot_all(3200, desktops=32)
    assert 12 <= median(host.limits[1000:]) <= 24


@pytest.mark.parametrize("fails", [0.02, 0.05])
def test_boots_that_fail_now_and_then_are_no_look_at_the_host(fails):
    host = Host(64, fails=fails)
    host.boot_all(6000)
    assert 48 <= median(host.limits[1000:]) <= 96


def test_a_host_that_fails_more_of_many_boots_than_of_few_gets_few():
    host = Host(64)
    host.boot_all(1000)
    assert host.bound.limit > 2 * FIRST
    host.fails = 0.9
    host.boot_all(200)
    assert host.bound.limit == FIRST


def test_a_host_whose_boots_do_not_queue_keeps_its_bound():
    host = Host(1000)
    for _ in range(100):
        host.boot_all(FIRST // 2)
    assert host.bound.limit == FIRST


def test_a_number_stays_a_number():
    host = Host(1000, fixed=3)
    assert host.boot_all(100) == 3 and host.most == 3
    host.bound.failed()
    assert host.bound.limit == 3


def test_boots_that_fail_in_a_row_take_the_bound_back_and_no_more_than_that_run_at_once_then():
    host = Host(1000)
    assert host.boot_all(200) > 2 * FIRST
    for _ in range(IN_A_ROW):
        assert host.bound.limit > 2 * FIRST
        host.bound.failed()
    host.most = 0
    host.boot_all(FIRST - 1)
    assert host.bound.limit == FIRST

    async def hold():
        """Of many that come, as many get in as the bound says."""
        inside = []

        async def enter(number):
            async with host.bound:
                inside.append(number)
                await asyncio.sleep(3600)

        tasks = [asyncio.create_task(enter(number)) for number in range(50)]
        for _ in range(60):
            await asyncio.sleep(0)
        admitted = len(inside)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await asyncio.wait_for(enter_and_leave(), 10)
        return admitted

    async def enter_and_leave():
        """Those who gave up waiting, or their boots, hold nothing."""
        for _ in range(FIRST + 1):
            async with host.bound:
                pass

    assert asyncio.run(hold()) == FIRST
