"""Things that all subsystems of one proxy share: settings, store, backend, trainer, events, metrics, tasks.

Owns that there is one of each. Nothing is decided here, and nothing here knows a subsystem.
"""

from __future__ import annotations

import math

from config.settings import Settings
from proxy.access.keys import Keys
from proxy.backends.base import Backend
from proxy.backends.further_model import make_further_servers
from proxy.conversation.active_conversations import ActiveConversations
from proxy.conversation.answer_on_screen import AnswerOnScreen
from proxy.conversation.capture_health import Health
from proxy.conversation.history_cache import History
from proxy.conversation.redaction import Redactor
from proxy.conversation.retries import Retries
from proxy.conversation.underway import AnswersInProgress
from proxy.core.events import Events
from proxy.core.heap_trim import Memory
from proxy.core.metrics import Metrics
from proxy.core.tasks import Tasks
from proxy.images.decoder import Decoder
from proxy.images.examiner import ImageExaminer
from proxy.images.trainability import PictureTraining
from proxy.telemetry.exporter import make_exporter
from proxy.versions.admission import Admission
from store.store import Store
from trainer.launch import Launcher


class Services:
    def __init__(self, settings: Settings, store: Store, backend: Backend, launcher: Launcher) -> None:
        self.settings = settings
        self.store = store
        self.backend = backend
        self.further = make_further_servers(settings)  # by their names in `[models.NAME]`
        self.launcher = launcher
        self.events = Events()
        self.metrics = Metrics()
        self.exporter = make_exporter(settings.telemetry, self.metrics)  # None: nothing is exported
        self.tasks = Tasks()
        self.memory = Memory(self.tasks)
        self.keys = Keys(settings.server)
        self.admission = Admission(settings.server)
        self.health = Health(backend.capabilities.longer_context)
        self.redactor = Redactor(settings.redaction)
        self.recent = ActiveConversations(History(self.redactor))
        self.underway = AnswersInProgress()
        self.images = ImageExaminer(store, Decoder(settings.images))
        self.picture_training = PictureTraining(store, lambda: settings.train.weights or backend.weights)
        self.screen = AnswerOnScreen(store, self.redactor, self.underway)
        self.retries = Retries(store, self.tasks)
        self.last_request = -math.inf  # of a model, monotonic: the learner waits for quiet
