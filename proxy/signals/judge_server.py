"""Which server is asked as the judge, what it is sent, and the consent that this needs.

Owns the judge's names, by which its labels are measured, and whether texts leave this machine. Not here: what it is
asked (questions, ranking), when (judging).
"""

from __future__ import annotations

import hashlib
import ipaddress
from typing import Final
from urllib.parse import urlsplit

from config.sections import Judge as Section
from proxy.backends.base import Backend
from proxy.core.server_url import base_url
from proxy.signals import questions, ranking
from proxy.signals.judge import Endpoint
from store.store import Store

CONSENT: Final = "judge_accepted"  # the address that an admin has accepted, and the statement
STATEMENT: Final = "2"  # what is sent: more of it needs to be accepted again


class JudgeServer:
    def __init__(self, settings: Section, store: Store, backend: Backend) -> None:
        self._settings = settings
        self._store = store
        self._backend = backend
        self._accepted: str | None = None

    async def start(self) -> None:
        self._accepted = await self._store.meta.get(CONSENT)

    @property
    def name(self) -> str:
        """The judge's name, as its labels and its ratings have it."""
        return self._settings.model or self._backend.served.model

    @property
    def config(self) -> str:
        """Another server, model, prompt or number of votes is another judge, whose agreement is measured anew."""
        return _short(f"{questions.VERSION}|{self._address}|{self.name}|{self._settings.votes}")

    @property
    def ranks_as(self) -> tuple[str, str]:
        """Its name and configuration where it ranks answers, which is another thing to be good at."""
        return f"{self.name}{ranking.SUFFIX}", _short(f"{ranking.VERSION}|{self._address}|{self.name}")

    @property
    def url(self) -> str:
        return base_url(self._settings.url or self._backend.url)

    @property
    def _address(self) -> str:
        """By which a judge is told from others, and an admin's consent is known."""
        return self.url.removesuffix("/v1")

    @property
    def leaves(self) -> bool:
        """Tell whether what it is sent leaves this machine."""
        return not _is_here(self.url)

    @property
    def accepted(self) -> bool:
        return not self.leaves or self._accepted == self._statement

    def statement(self) -> str:
        """The notice that a person should read before it is enabled."""
        contents = (
            "For each follow-up that a person types, the judge is sent three texts, each up to 4,000 characters. "
            "They are what the person had asked, what the model answered, and the follow-up. Where one question has "
            "several answers, it is sent the question and up to six of them. Secrets of known shapes are replaced "
            "before ([redaction]); names and what people tell of themselves are not. Tool results, system prompts and "
            "documents are never sent, nor are side turns other than those of Compare."
        )
        destination = (
            f"They go to {self.url}, which is another machine: its operator can read them."
            if self.leaves
            else f"They go to {self.url}, on this machine; nothing leaves it."
        )
        return f"{contents} {destination}"

    async def accept(self, actor: str) -> None:
        self._accepted = self._statement
        await self._store.meta.set(CONSENT, self._statement)
        await self._store.meta.audit(actor, "judge_accepted", {"url": self.url, "model": self.name})

    @property
    def _statement(self) -> str:
        return f"{self._address} {STATEMENT}"

    def endpoint(self) -> Endpoint:
        if self._settings.url:
            key = self._settings.api_key
            headers = {} if key is None else {"authorization": f"Bearer {key.get_secret_value()}"}
        else:
            headers = dict(self._backend.headers())
        return Endpoint(self.url, self.name, headers)


def _short(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:12]


def _is_here(url: str) -> bool:
    host = urlsplit(url).hostname or ""
    if host in ("localhost", ""):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
