"""Agents whose episodes a program rewards, among the people who chat; and what they were told.

Owns one kind of client. An episode is opened by a call or by its first request, has a few turns and one reward. What
was under way at a kill is said once more. Not here: what the disk must hold (check).
"""

from __future__ import annotations

from typing import Any

import aiohttp

from scripts.chaos.people import NEVER, Person, Reward

TURNS = 3


class Agent(Person):
    """One program with one episode after the other."""

    episodes = 0

    async def live(self, http: aiohttp.ClientSession) -> None:
        """Until the proxy is gone."""
        try:
            while True:
                await self._episode(http)
        except (aiohttp.ClientError, ConnectionError, TimeoutError):
            self._ledger.cut += 1

    async def resend(self, http: aiohttp.ClientSession) -> None:
        """The reward that was under way when the proxy died, and the newest one: said twice, it changes nothing."""
        own_rewards = [reward for reward in self._ledger.rewards.values() if reward.agent == self.name]
        for reward in [reward for reward in own_rewards if reward.acknowledged_at == NEVER] + own_rewards[-1:]:
            await self._reward(http, reward)

    async def _episode(self, http: aiohttp.ClientSession) -> None:
        self.episodes += 1
        self.session = id = f"{self.name}-e{self.episodes}"
        if self._dice.random() < 0.5:
            async with http.post("/rl/episodes", json={"id": id, "group": f"{self.name}-g"}) as response:
                assert response.status == 201, await response.text()
            self._ledger.opened[id] = self._now()
        for _ in range(self._dice.randint(1, TURNS)):
            await self.ask(http)
        reward = Reward(id, self.name, self._dice.choice((-1.0, 0.0, 0.25, 1.0)), self._now())
        self._ledger.rewards[id] = reward
        await self._reward(http, reward)
        body = {"model": "fake", "messages": [{"role": "user", "content": "one more"}]}
        async with http.post("/v1/chat/completions", json=body, headers={"x-rl-session": id}) as response:
            assert response.status == 410, await response.text()  # it has ended

    async def _reward(self, http: aiohttp.ClientSession, reward: Reward) -> None:
        body: dict[str, Any] = {"reward": reward.value}
        async with http.post(f"/rl/episodes/{reward.episode}/reward", json=body) as response:
            assert response.status in (200, 201), await response.text()
        if reward.acknowledged_at == NEVER:
            reward.acknowledged_at = self._now()
            self._ledger.acknowledged += 1
