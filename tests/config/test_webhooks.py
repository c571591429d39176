"""Secrets come from the environment or from a file that nobody else reads; anything else stops the start."""

from __future__ import annotations

from pathlib import Path

import pytest

from config.errors import SettingsError
from config.settings import load
from config.webhooks import secret

SLACK = "RLPROXY_WEBHOOKS__SLACK__"


def read(home: Path, **environ: str) -> object:
    return load(environ={"RLPROXY_HOME": str(home), **environ}).settings.webhooks


def slack(home: Path, **environ: str) -> str | None:
    webhooks = load(environ={"RLPROXY_HOME": str(home), **environ}).settings.webhooks
    return secret(webhooks.slack, "signing_secret", "webhooks.slack.signing_secret")


def private(path: Path, text: str, mode: int = 0o600) -> Path:
    path.write_text(text)
    path.chmod(mode)
    return path


def test_a_secret_comes_from_the_environment_or_a_file_of_its_own(tmp_path: Path) -> None:
    assert slack(tmp_path) is None
    assert slack(tmp_path, **{SLACK + "SIGNING_SECRET": "s3"}) == "s3"
    file = private(tmp_path / "slack", "s4\n")
    assert slack(tmp_path, **{SLACK + "SIGNING_SECRET_FILE": str(file)}) == "s4"
    (tmp_path / "rlproxy.toml").write_text(f'[webhooks.slack]\nsigning_secret_file = "{file}"\n')
    assert slack(tmp_path) == "s4"


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o644, 0o660, 0o602])
def test_a_file_that_others_can_read_is_refused(tmp_path: Path, mode: int) -> None:
    file = private(tmp_path / "slack", "hunter2", mode)
    with pytest.raises(SettingsError, match="chmod 600") as caught:
        read(tmp_path, **{SLACK + "SIGNING_SECRET_FILE": str(file)})
    assert "hunter2" not in str(caught.value) and "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("environ", "sentence"),
    [
        ({SLACK + "SIGNING_SECRET_FILE": "/nowhere/at/all"}, "signing_secret_file: /nowhere/at/all cannot be read"),
        ({SLACK + "BOT_TOKEN": "x", SLACK + "BOT_TOKEN_FILE": "/x"}, "bot_token and webhooks.slack.bot_token_file are"),
        ({"RLPROXY_WEBHOOKS__STARS": '["1"]'}, "stars are five emoji, or none"),
        ({"RLPROXY_WEBHOOKS__BAD": '["👍"]'}, "👍 is there twice"),
        ({"RLPROXY_WEBHOOKS__GOOD": "👍"}, "webhooks.good from env RLPROXY_WEBHOOKS__GOOD should be a JSON array"),
        ({SLACK + "RATERS": "U1"}, "webhooks.slack.raters from env RLPROXY_WEBHOOKS__SLACK__RATERS should be a JSON"),
        ({"RLPROXY_WEBHOOKS__DISCORD__PUBLIC_KEY": "abc"}, "webhooks.discord.public_key"),
        ({"RLPROXY_WEBHOOKS__DISCORD__GATEWAY": "true"}, "the Gateway needs bot_token"),
    ],
)
def test_a_wrong_setting_is_one_sentence(tmp_path: Path, environ: dict[str, str], sentence: str) -> None:
    with pytest.raises(SettingsError) as caught:
        read(tmp_path, **environ)
    assert sentence in str(caught.value) and "\n" not in str(caught.value)


def test_an_empty_file_is_no_secret(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="is empty"):
        read(tmp_path, **{SLACK + "SIGNING_SECRET_FILE": str(private(tmp_path / "slack", "\n"))})


def test_the_settings_file_is_no_place_for_a_secret(tmp_path: Path) -> None:
    (tmp_path / "rlproxy.toml").write_text('[webhooks.telegram]\nsecret_token = "hunter2"\n')
    with pytest.raises(SettingsError, match="RLPROXY_WEBHOOKS__TELEGRAM__SECRET_TOKEN") as caught:
        read(tmp_path)
    assert "hunter2" not in str(caught.value)


def test_people_keep_the_case_of_their_ids(tmp_path: Path) -> None:
    (tmp_path / "rlproxy.toml").write_text('[webhooks.slack]\nraters = {U07Ab = "ann"}\nadmins = ["U07Ab"]\n')
    found = load(environ={"RLPROXY_HOME": str(tmp_path)}).settings.webhooks.slack
    assert found.raters == {"U07Ab": "ann"} and found.admins == ("U07Ab",)
