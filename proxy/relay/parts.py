"""Parts that every exchange works with. Made once, when the proxy starts."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final

from aiohttp import web
from multidict import CIMultiDict

from config.settings import Settings
from proxy.access.security import outgoing_headers, without_keys
from proxy.backends.base import Backend
from proxy.backends.refused_wishes import RefusedWishes
from proxy.conversation.active_conversations import ActiveConversations
from proxy.conversation.capture_health import Health
from proxy.conversation.redaction import Redactor
from proxy.conversation.secret_shapes import LONGEST
from proxy.conversation.underway import AnswersInProgress
from proxy.core.backend_http import Connections
from proxy.core.events import Events
from proxy.core.heap_trim import Memory
from proxy.core.metrics import Metrics
from proxy.core.sharing.shares import Room
from proxy.core.tasks import Tasks
from proxy.core.upstream import MOST_MESSAGE, end_to_end
from proxy.dialects import Dialect, ParsedRequest
from proxy.feedback.episodes import Episodes
from proxy.relay.capture.capture import Capture
from proxy.relay.capture.optout import CaptureOptout
from proxy.relay.codecs import Formats
from proxy.relay.episode_queue import EpisodeQueue
from proxy.relay.lessons import PromptLessons
from proxy.training.throttle import BackgroundThrottle
from proxy.versions.admission import Admission
from proxy.versions.live_version import LiveVersion
from store.store import Store

MOST_ERROR: Final = 2000  # characters of an error that are stored


@dataclass
class RelayParts:
    """All of it; `connections` is set at start-up, when there is a loop."""

    settings: Settings
    store: Store
    backend: Backend
    live_version: LiveVersion
    metrics: Metrics
    tasks: Tasks
    health: Health
    formats: Formats
    admission: Admission
    events: Events
    redactor: Redactor
    uncaptured: CaptureOptout
    recent: ActiveConversations
    memory: Memory
    throttle: BackgroundThrottle
    underway: AnswersInProgress
    episodes: Episodes
    queue: EpisodeQueue
    lessons: PromptLessons | None = None  # None: they are off
    wishes: RefusedWishes = field(default_factory=RefusedWishes)
    connections: Connections | None = None

    def request_headers(self, request: web.Request) -> CIMultiDict[str]:
        return outgoing_headers(
            end_to_end(request.headers), settings=self.settings.server, backend=self.backend.headers()
        )

    def capture(
        self, id: str, parsed: ParsedRequest, dialect: Dialect, keepable: Callable[[str], str], room: Room | None = None
    ) -> Capture:
        """The capture of one request's completions. `keepable`: what may be stored of an error; `room`: for what is
        folded."""
        served, store = self.backend.served, self.store
        capture = Capture(
            store, self.metrics, self.health, self.events, self.redactor, self.underway, id, parsed.n, keepable,
            dialect, parsed.tools, room,
        )  # fmt: skip
        capture.source.guessed = parsed.unclear_reason or served.uncertainty(parsed.sampling)
        capture.source.logprobs_of = served.logprobs_of or self.backend.capabilities.logprobs_of
        return capture

    def keepable(self, request: web.Request, text: str) -> str:
        """An error as it may be stored: its beginning, without keys and secrets."""
        is_cut = len(text) >= MOST_MESSAGE
        text = self.redactor.text(without_keys(text[:MOST_MESSAGE], self.request_headers(request)))
        # Half a secret at its end was not known as one.
        return text[: max(0, len(text) - LONGEST) if is_cut else None][:MOST_ERROR]
