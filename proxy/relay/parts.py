"""Parts that every exchange works with. Made once, when the proxy starts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from aiohttp import web
from multidict import CIMultiDict

from proxy.access.security import outgoing_headers, without_keys
from proxy.backends.ask import OWN_SECTION
from proxy.backends.base import Backend
from proxy.backends.refused_wishes import RefusedWishes
from proxy.conversation.secret_shapes import LONGEST
from proxy.core.backend_http import Connections
from proxy.core.sharing.shares import Room
from proxy.core.upstream import MOST_MESSAGE, end_to_end
from proxy.dialects import Dialect, ParsedRequest
from proxy.feedback.episodes import Episodes
from proxy.relay.capture.capture import Capture, CaptureServices
from proxy.relay.capture.optout import CaptureOptout
from proxy.relay.codecs import Formats
from proxy.relay.episode_queue import EpisodeQueue
from proxy.relay.lessons import PromptLessons
from proxy.relay.model_servers import ModelServer, servers_by_name
from proxy.training.throttle import BackgroundThrottle, longest
from proxy.training.training import Training
from proxy.versions.services import Services

MOST_ERROR: Final = 2000  # characters of an error that are stored


class RelayParts:
    """All of it; `connections` is set at start-up, when there is a loop."""

    def __init__(
        self, services: Services, training: Training, formats: Formats, episodes: Episodes, queue: EpisodeQueue
    ) -> None:
        self.services = services
        self.settings = settings = services.settings
        self.store = store = services.store
        self.backend = services.backend
        self.metrics = services.metrics
        self.exporter = services.exporter
        self.tasks = services.tasks
        self.health = services.health
        self.admission = services.admission
        self.redactor = services.redactor
        self.recent = services.recent
        self.underway = services.underway
        self.live_version = training.live_version
        self.lines = training.lines
        self.arms = training.arms
        self.formats = formats
        self.own_server = ModelServer(services.backend, formats, OWN_SECTION, is_further=False)
        self.further = servers_by_name(services.further)
        self.episodes = episodes
        self.queue = queue
        self.uncaptured = CaptureOptout(store, services.recent, services.retries)
        self.lessons = PromptLessons(store) if settings.lessons.enabled else None
        self.memory = services.memory
        self.throttle = BackgroundThrottle(
            services.launcher.stand_still, longest(settings.backend, settings.train.stand_still_s)
        )
        self.wishes = RefusedWishes()
        self.connections: Connections | None = None
        self._capture_services = CaptureServices(
            store, services.metrics, services.health, services.events, services.redactor, services.underway
        )

    def request_headers(self, request: web.Request, server: ModelServer | None = None) -> CIMultiDict[str]:
        """Headers of a request as this server gets them; by default, the home's own server."""
        server = server or self.own_server
        return outgoing_headers(
            end_to_end(request.headers),
            settings=self.settings.server,
            backend=server.backend.headers(),
            passes_keys=not server.is_further,
        )

    def capture(
        self,
        id: str,
        parsed: ParsedRequest,
        dialect: Dialect,
        keepable: Callable[[str], str],
        backend: Backend,
        room: Room | None = None,
    ) -> Capture:
        """The capture of one request's completions. `keepable`: what may be stored of an error; `backend`: its
        server; `room`: for what is folded."""
        served = backend.served
        capture = Capture(self._capture_services, id, parsed.n, keepable, dialect, parsed.tools, room)
        capture.source.guessed = parsed.unclear_reason or served.uncertainty(parsed.sampling)
        capture.source.logprobs_of = served.logprobs_of or backend.capabilities.logprobs_of
        return capture

    def keepable(self, request: web.Request, server: ModelServer, text: str) -> str:
        """An error as it may be stored: its beginning, without keys and secrets."""
        is_cut = len(text) >= MOST_MESSAGE
        text = without_keys(without_keys(text[:MOST_MESSAGE], request.headers), server.backend.headers())
        text = self.redactor.text(text)
        # Half a secret at its end was not known as one.
        return text[: max(0, len(text) - LONGEST) if is_cut else None][:MOST_ERROR]
