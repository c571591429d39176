"""All that answers a route, made once when the proxy starts; `route_table` names its members.

Owns what the routes are made of. Not here: which route each answers, and who may ask it.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from aiohttp import web

from proxy.core.errors import Unsupported
from proxy.dialects import RESPONSES, dialect_at
from proxy.feedback.channels import Channels
from proxy.feedback.webhooks.links import Links
from proxy.relay.count_tokens import CountTokens
from proxy.relay.models import Models
from proxy.relay.ollama_routes import OllamaRoutes
from proxy.relay.parts import RelayParts
from proxy.relay.passthrough import Passthrough
from proxy.relay.relay import Relay
from proxy.training.training import Training
from proxy.versions.services import Services
from proxy.web.compaction import Compaction
from proxy.web.control import Control
from proxy.web.episode_routes import EpisodeRoutes
from proxy.web.error_middleware import Handler
from proxy.web.experiment_routes import ExperimentRoutes
from proxy.web.explanation import Explanations
from proxy.web.forgetting import Forgetter
from proxy.web.importing import ImportRoutes
from proxy.web.judge_routes import JudgeRoutes
from proxy.web.key_routes import KeyRoutes
from proxy.web.lesson_routes import LessonRoutes
from proxy.web.lines.routes import LineRoutes
from proxy.web.pages import Pages
from proxy.web.response_socket import Admits, ResponseSocket
from proxy.web.retention import Retention
from proxy.web.retrain.routes import RetrainRoutes
from proxy.web.status import StatusReport
from proxy.web.stored_responses import StoredResponses


class Handlers:
    def __init__(
        self,
        services: Services,
        training: Training,
        channels: Channels,
        parts: RelayParts,
        status: StatusReport,
        is_still_allowed: Callable[[web.Request], bool],
        admits: Admits,
    ) -> None:
        """`is_still_allowed`: whether a request would be let in now as it was; `admits` lets one in."""
        store = services.store
        # models
        self.relay = Relay(parts, channels.commands)
        self.counts = CountTokens(parts)
        untouched = Passthrough(parts).relay
        self.models = Models(parts, untouched)
        self.passed = OllamaRoutes(parts, self.models, untouched).passed
        if services.backend.kind == "ollama":  # imported where it is used, as the backends are
            from proxy.relay.ollama_lists import OllamaLists

            self.passed = OllamaLists(parts, self.models.passed, untouched).passed
        self.uncaptured = parts.uncaptured
        # what people and programs say of answers
        self.feedback, self.open_webui, self.webhooks = channels.feedback, channels.open_webui, channels.webhooks
        self.links = Links(store, channels.webhooks.answer_shown, is_matrix_on=services.settings.webhooks.matrix.is_on)
        self.episodes = EpisodeRoutes(store, parts.episodes, training.live_version, training.lines)
        # people look, and decide
        self.control = Control(services, training, status, channels.feedback, is_still_allowed)
        self.explanations = Explanations(store, channels.feedback, training.copies)
        self.keys = KeyRoutes(services.keys, training.lines)
        self.lines = LineRoutes(store, training.lines, training.live_version, training.preconditions)
        self.judge = JudgeRoutes(store, training.judging, parts.episodes.rewarding)
        self.experiments = ExperimentRoutes(training.experiments)
        self.lessons = LessonRoutes(store, parts.lessons, services.redactor)
        self.retrain = RetrainRoutes(training.retraining, training.supervisor, store, training.lines)
        self.importing = ImportRoutes(store, services.redactor)
        self.forgetter = Forgetter(
            services, training.run_files, training.unlearning, channels.unconfirmed, parts.lessons
        )
        self.stored = StoredResponses(parts, self.forgetter, untouched)
        self.socket = ResponseSocket(parts, admits, partial(self.relay.data, dialect=RESPONSES), untouched)
        self.compaction = Compaction(parts, admits, partial(self.relay.data, dialect=RESPONSES), untouched)
        self.retention = Retention(store, services.settings)
        self.pages = Pages(
            services,
            training,
            channels.feedback,
            status,
            self.forgetter,
            self.retention,
            self.lessons,
            self.explanations,
        )

    def relayed(self, path: str) -> Handler:
        """Ask the backend, in the format whose route this is."""
        dialect = dialect_at(path)
        if dialect is None:
            raise Unsupported(f"No format has the route {path}.")
        return partial(self.relay.data, dialect=dialect)


Answers = Callable[[Handlers], Handler]
