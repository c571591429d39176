"""A version's first requests, before anybody else asks it.

Owns the one short request that shows that it can answer, and the reading ahead. A new version has read none of the
conversations that run now, and all would wait for theirs at once. So it reads their prompts, a token or two each. What
is asked here is not a completion: it is not captured, not counted, and its answer is thrown away. Not here: which
prompts (active_conversations), what follows from a failure (live_version).
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any, Final

import structlog

from proxy.backends.ask import ask
from proxy.backends.base import Address, Backend
from proxy.conversation.active_conversations import ActiveConversations
from proxy.core.errors import BackendDown, ProxyError

log = structlog.get_logger()

WARM_UP_S = 120.0  # a first request on a cold adapter may compile kernels
READ_AHEAD_S = 10.0  # what has not been read by then is read when it is asked
HELLO: Final[Mapping[str, Any]] = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 1}


class WarmUp:
    def __init__(self, backend: Backend, recent: ActiveConversations) -> None:
        self._backend, self._recent = backend, recent

    async def answers(self, name: str) -> tuple[int, str]:
        """Status and text of the first server that does not answer with 200, else of any: also of those that come back
        meanwhile.

        Who is not reached is left out, where the backend has others. Raises BackendDown.
        """
        answered: set[str] = set()
        failed: dict[str, BackendDown] = {}
        while addresses := [a for a in self._backend.addresses(name) if a.url not in answered | failed.keys()]:
            address = addresses[0]
            try:
                status, text = await ask(self._backend, address, HELLO, WARM_UP_S, "the warm-up request")
            except BackendDown as error:
                failed[address.url] = error
                if not self._backend.fail_over(address):
                    raise
                continue
            if status != 200:
                return status, text.decode(errors="replace")
            answered.add(address.url)
        if not answered:
            raise next(iter(failed.values()))
        return 200, ""

    async def read_ahead(self, name: str) -> None:
        """Whatever fails here costs somebody a moment, and no swap."""
        try:
            prompts = self._recent.prompts(most=await self._backend.read_ahead_limit(name))
            addresses = self._backend.addresses(name)
        except ProxyError as error:
            log.warning("nothing is read ahead", error=str(error))
            return
        if not prompts:
            return
        read = 0

        async def read_prompt(prompt: Mapping[str, Any], address: Address) -> None:
            nonlocal read
            status, _ = await ask(self._backend, address, prompt, READ_AHEAD_S)
            read += status == 200

        tasks = [asyncio.create_task(read_prompt(prompt, address)) for prompt in prompts for address in addresses]
        try:
            await asyncio.wait(tasks, timeout=READ_AHEAD_S)
        finally:
            for task in tasks:  # whose connection closes: the server need not read on
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        log.info("read ahead", prompts=len(tasks), read=read)
