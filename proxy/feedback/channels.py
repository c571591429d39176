"""The ways in which people and programs say what they think of an answer.

Owns which of them is made of which. Not here: what each does, and their routes (proxy.web.route_table).
"""

from __future__ import annotations

from proxy.feedback.chat_command import ChatCommands, StatusTexts
from proxy.feedback.open_webui import OpenWebUI
from proxy.feedback.ratings import Feedback
from proxy.feedback.unconfirmed_fixes import UnconfirmedFixes
from proxy.feedback.webhooks.routes import Webhooks
from proxy.training.admin_acts import AdminActs
from proxy.versions.services import Services


class Channels:
    def __init__(self, services: Services, acts: AdminActs, status: StatusTexts) -> None:
        """`status`: its text, for a chat. Raises SettingsError, Unsupported where a platform cannot be set up."""
        store, screen, redactor = services.store, services.screen, services.redactor
        self.feedback = Feedback(store, services.events, services.metrics, redactor, screen)
        self.open_webui = OpenWebUI(store, self.feedback, screen, redactor)
        self.unconfirmed = UnconfirmedFixes()
        self.commands = ChatCommands(store, self.feedback, status, acts, screen, self.unconfirmed)
        self.webhooks = Webhooks(
            services.settings.webhooks, store, self.feedback, self.commands, services.metrics, services.tasks, screen
        )
