"""The settings of chat platforms: who may rate from there, what emoji mean, and the secrets that prove who speaks.

Owns where secrets may come from: the environment, or a file of their own that nobody else can read. Not here: what
a platform sends (proxy.feedback.webhooks).
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import Annotated, ClassVar, Final, Self

from pydantic import BaseModel, Field, SecretStr, model_validator

from config.errors import SettingsError
from config.sections import Key, Section, UserPath, _unset

SecretFile = Annotated[UserPath | None, _unset]
Name = Annotated[str, Field(min_length=1, max_length=200)]


class PlatformSection(Section):
    turned_on_by: ClassVar[str]  # the key without which the platform's route is off
    raters: dict[Name, Name] = Field(default={})
    """People who may rate every reply, by their id on the platform, each with the name to rate by."""
    admins: tuple[Name, ...] = ()
    """Ids of people who may also train, pause, resume, roll back and reset by `/rl` from there."""

    @property
    def is_on(self) -> bool:
        return bool(getattr(self, self.turned_on_by) or getattr(self, f"{self.turned_on_by}_file", None))

    @model_validator(mode="after")
    def _buttons_need_a_token(self) -> Self:
        token, file = getattr(self, "bot_token", ""), getattr(self, "bot_token_file", None)
        if getattr(self, "buttons", False) and token is None and file is None:
            raise ValueError("buttons need bot_token or bot_token_file")
        return self


class SlackSection(PlatformSection):
    turned_on_by = "signing_secret"
    signing_secret: Key = None
    """Signing secret of the Slack app; turns /rl/webhooks/slack on."""
    signing_secret_file: SecretFile = None
    """File that holds it, readable by nobody else."""
    bot_token: Key = None
    """Bot token, to read the text of a message that no link is known of; needs the history scopes."""
    bot_token_file: SecretFile = None
    """File that holds the bot token, readable by nobody else."""
    api: str = "https://slack.com/api"
    """Where Slack's Web API is."""
    buttons: bool = False
    """Put 👍 and 👎 under each answer that is linked, so that one tap rates it; needs reactions:write."""


class TelegramSection(PlatformSection):
    turned_on_by = "secret_token"
    secret_token: Key = None
    """The secret_token given to Telegram's setWebhook; turns /rl/webhooks/telegram on."""
    secret_token_file: SecretFile = None
    """File that holds the secret_token, readable by nobody else."""
    bot_token: Key = None
    """Token of the Telegram bot; needed for buttons alone."""
    bot_token_file: SecretFile = None
    """File that holds the token of the Telegram bot, readable by nobody else."""
    api: str = "https://api.telegram.org"
    """Where Telegram's Bot API is."""
    buttons: bool = False
    """Put 👍 and 👎 under each answer that is linked, so that one tap rates it."""


class DiscordSection(PlatformSection):
    turned_on_by = "public_key"
    public_key: str = Field(default="", pattern="^([0-9a-fA-F]{64})?$")
    """Public key of the Discord application, 64 hex digits; turns /rl/webhooks/discord on."""
    bot_token: Key = None
    """Token of the Discord bot; needed for reactions, and to read the text of a message without a link."""
    bot_token_file: SecretFile = None
    """File that holds the token of the Discord bot, readable by nobody else."""
    gateway: bool = False
    """Listen to Discord's Gateway for reactions, which do not come by webhook."""
    api: str = "https://discord.com/api/v10"
    """Where Discord's HTTP API is."""
    buttons: bool = False
    """Put 👍 and 👎 under each answer that is linked, so that one tap rates it; needs the Gateway."""

    @model_validator(mode="after")
    def _gateway_needs_a_token(self) -> Self:
        if self.buttons and not self.gateway:
            raise ValueError("buttons need gateway = true: a tap on them comes by the Gateway")
        if self.gateway and self.bot_token is None and self.bot_token_file is None:
            raise ValueError("the Gateway needs bot_token or bot_token_file")
        return self


class WhatsAppSection(PlatformSection):
    turned_on_by = "app_secret"
    app_secret: Key = None
    """App secret of the Meta app; turns /rl/webhooks/whatsapp on."""
    app_secret_file: SecretFile = None
    """File that holds the app secret, readable by nobody else."""
    verify_token: Key = None
    """The verify token that you give to Meta when you subscribe the webhook."""
    verify_token_file: SecretFile = None
    """File that holds the verify token, readable by nobody else."""


class MatrixSection(PlatformSection):
    turned_on_by = "hs_token"
    hs_token: Key = None
    """Token by which the homeserver proves itself (`rlproxy connect matrix` makes it); turns the route on."""
    hs_token_file: SecretFile = None
    """File that holds the homeserver's token, readable by nobody else."""
    as_token: Key = None
    """Token by which rlproxy asks the homeserver, to answer commands and read the text of a message."""
    as_token_file: SecretFile = None
    """File that holds the application service's token, readable by nobody else."""
    homeserver: str = "http://127.0.0.1:8008"
    """Where the homeserver answers clients."""
    agents: tuple[Name, ...] = ()
    """User ids of your agents: only their messages are answers, and only they may name a completion."""
    buttons: bool = False
    """Put 👍 and 👎 under each answer that names its completion or is linked, so that one tap rates it."""


class SignedSection(PlatformSection):
    turned_on_by = "secret"
    secret: Key = None
    """Secret (whsec_… or base64) that senders sign with, as Standard Webhooks says; turns the route on."""
    secret_file: SecretFile = None
    """File that holds that secret, readable by nobody else."""


class WebhooksSection(Section):
    good: tuple[str, ...] = ("👍", "❤️", "🎉", "✅", "💯", "👏", "🔥", "👌")
    """Reactions that rate a reply good; an emoji, or the name of a custom one."""
    bad: tuple[str, ...] = ("👎", "💩", "❌", "🤮")
    """Reactions that rate a reply bad."""
    stars: tuple[str, ...] = ("1️⃣", "2️⃣", "3️⃣", "4️⃣", "5️⃣")
    """Reactions that stand for one to five stars, in that order; or none."""
    slack: SlackSection = SlackSection()
    telegram: TelegramSection = TelegramSection()
    discord: DiscordSection = DiscordSection()
    whatsapp: WhatsAppSection = WhatsAppSection()
    matrix: MatrixSection = MatrixSection()
    signed: SignedSection = SignedSection()
    openclaw: SignedSection = SignedSection()

    @model_validator(mode="after")
    def _each_means_one_thing(self) -> Self:
        if len(self.stars) not in (0, 5):
            raise ValueError("stars are five emoji, or none")
        every = (*self.good, *self.bad, *self.stars)
        if twice := next((emoji for emoji in every if every.count(emoji) > 1), None):
            raise ValueError(f"{twice} is there twice")
        return self


PLATFORMS: Final = tuple(
    name for name, field in WebhooksSection.model_fields.items() if isinstance(field.default, PlatformSection)
)


def secret(section: BaseModel, key: str, name: str) -> str | None:
    """The secret `key` of a section, from its value or its file; `name` is its dotted key. Raises SettingsError."""
    value: SecretStr | None = getattr(section, key)
    path: Path | None = getattr(section, f"{key}_file")
    if value is not None and path is not None:
        raise SettingsError(f"{name} and {name}_file are both set; remove one.")
    if path is None:
        return None if value is None else value.get_secret_value()
    try:
        with path.open("rb") as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode) or status.st_mode & 0o077:
                raise SettingsError(f"{name}_file: others can read {path}; do `chmod 600 {path}` and start again.")
            text = file.read(10_000).decode().strip()
    except (OSError, UnicodeDecodeError) as error:
        raise SettingsError(f"{name}_file: {path} cannot be read ({error}).") from None
    if not text:
        raise SettingsError(f"{name}_file: {path} is empty.")
    return text


def check_secrets(webhooks: WebhooksSection) -> None:
    """A file that is missing, or that others can read, should stop the start, not the first webhook."""
    for platform in PLATFORMS:
        section = getattr(webhooks, platform)
        for key in type(section).model_fields:
            if f"{key}_file" in type(section).model_fields:
                secret(section, key, f"webhooks.{platform}.{key}")
