from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest
from pydantic import ValidationError

from config.errors import SettingsError
from config.meanings import meanings
from config.settings import LoadedSettings, Settings, fields, load

EXAMPLE = Path(__file__).parents[2] / "config" / "rlproxy.example.toml"


def write(home: Path, text: str) -> Path:
    path = home / "rlproxy.toml"
    path.write_text(text)
    return path


def read(home: Path, flags: dict[str, object] | None = None, **environ: str) -> LoadedSettings:
    return load(flags, environ={"RLPROXY_HOME": str(home), **environ})


def test_file_gives_way_to_environment_and_environment_to_flags(tmp_path: Path) -> None:
    path = write(tmp_path, '[server]\nport = 1\nhost = "a"\n[log]\nlevel = "error"\n')
    loaded = read(tmp_path, {"server.port": 3}, RLPROXY_SERVER__PORT="2", RLPROXY_SERVER__HOST="b")

    assert (loaded.settings.server.port, loaded.settings.server.host) == (3, "b")
    assert loaded.settings.log.level == "error"
    assert loaded.sources["server.port"] == "flag --port"
    assert loaded.sources["server.host"] == "env RLPROXY_SERVER__HOST"
    assert loaded.sources["log.level"] == f"file {path}"
    assert loaded.sources["backend.kind"] == "default"
    assert set(loaded.sources) == set(fields())


def test_a_flag_that_is_none_was_not_given(tmp_path: Path) -> None:
    assert read(tmp_path, {"server.port": None}).sources["server.port"] == "default"


def test_an_empty_variable_was_not_given(tmp_path: Path) -> None:
    assert read(tmp_path, RLPROXY_SERVER__PORT="").settings.server.port == 8484


def test_home_of_the_flag_finds_the_file(tmp_path: Path) -> None:
    write(tmp_path, "[server]\nport = 7\n")
    assert load({"home": tmp_path}, environ={}).settings.server.port == 7


def test_home_expands_the_tilde() -> None:
    settings = Settings()
    assert settings.home == Path.home() / ".rlproxy"
    assert settings.adapters_dir == Path.home() / ".rlproxy" / "adapters_out"


def test_adapters_go_where_they_are_told(tmp_path: Path) -> None:
    loaded = read(tmp_path, {"train.adapters_dir": tmp_path / "x"})
    assert loaded.settings.adapters_dir == tmp_path / "x"


def test_tables_and_lists_come_from_the_file_and_the_environment(tmp_path: Path) -> None:
    write(tmp_path, '[train]\nhours = ["sat 00:00-24:00"]\n[train.raters]\nAnn = 2\n"u.1" = 0.5\n')
    train = read(tmp_path).settings.train
    assert train.raters == {"Ann": 2.0, "u.1": 0.5} and train.hours == ("sat 00:00-24:00",)
    train = read(tmp_path, RLPROXY_TRAIN__HOURS='["22:00-07:00"]', RLPROXY_TRAIN__RATERS='{"Bob": 3}').settings.train
    assert train.raters == {"Bob": 3.0} and train.hours == ("22:00-07:00",)


def test_names_in_variables_are_taken_as_they_are_spelt(tmp_path: Path) -> None:
    given = {"RLPROXY_TRAIN__RATERS__Ann": "2", "RLPROXY_WEBHOOKS__SLACK__RATERS__U12345": "ann"}
    settings = read(tmp_path, **given).settings
    assert settings.train.raters == {"Ann": 2.0} and settings.webhooks.slack.raters == {"U12345": "ann"}


def test_settings_built_bare_read_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RLPROXY_SERVER__PORT", "9")
    assert Settings().server.port == 8484


def test_settings_are_frozen() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        Settings().server.port = 1  # type: ignore[misc]


def test_overrides_come_from_the_environment_whole_or_one_by_one(tmp_path: Path) -> None:
    whole = read(tmp_path, RLPROXY_TRAIN__OVERRIDES='{"rank": 4}')
    single = read(tmp_path, RLPROXY_TRAIN__OVERRIDES__RANK="4")
    assert whole.settings.train.overrides == {"rank": 4}
    assert single.settings.train.overrides == {"rank": "4"}
    assert single.sources["train.overrides"] == "env RLPROXY_TRAIN__OVERRIDES__RANK"


@pytest.mark.parametrize(
    ("flags", "environ", "file", "sentence"),
    [
        ({"server.prt": 1}, {}, "", "no setting 'server.prt' (flag --prt); did you mean 'server.port'?"),
        ({}, {"RLPROXY_SERVR__PORT": "1"}, "", "(env RLPROXY_SERVR__PORT); did you mean 'server.port'?"),
        ({}, {"RLPROXY_SERVER": "{}"}, "", "no setting 'server'"),
        ({}, {}, "[train]\nstart = 3", "no setting 'train.start'"),
        ({}, {}, "server = 3", "no setting 'server'"),
        ({}, {}, 'home = "/elsewhere"', "use --home or RLPROXY_HOME"),
        ({}, {}, "[server", "cannot be read"),
        ({"server.port": 70000}, {}, "", "70000 from flag --port is not allowed: input should be less"),
        ({}, {"RLPROXY_SERVER__PORT": "x"}, "", "'x' from env RLPROXY_SERVER__PORT is not allowed"),
        ({}, {}, '[backend]\nkind = "v"', "should be 'builtin', 'vllm', 'sglang'"),
        ({}, {"RLPROXY_GATE__MARGIN_SLACK": "nan"}, "", "should be a finite number"),
        ({"train.preset": "carefull"}, {}, "", "did you mean 'careful'? (from flag --preset)"),
        ({}, {"RLPROXY_TRAIN__OVERRIDES__RNK": "4"}, "", "did you mean 'rank'?"),
        ({}, {"RLPROXY_TRAIN__OVERRIDES": "{"}, "", "should be a JSON object"),
        ({}, {"RLPROXY_TRAIN__RATERS": "{"}, "", "train.raters from env RLPROXY_TRAIN__RATERS should be a JSON object"),
        ({}, {"RLPROXY_TRAIN__HOURS": "22:00-07:00"}, "", "RLPROXY_TRAIN__HOURS should be a JSON array"),
        ({}, {}, '[train]\nhours = ["22-7"]', "'22-7' is no window of time: write \"22:00-07:00\""),
        ({}, {}, '[train]\nhours = "22:00-07:00"', "train.hours: '22:00-07:00' from file"),
        ({}, {}, "[train.raters]\nann = 0", "train.raters: 0 from file"),
        ({}, {}, '[train]\nrewards = "stars"', "should be 'binary', 'ordinal', 'normalised' or 'hybrid'"),
        ({"train.rollouts": 4}, {}, "", "train.rollouts needs train.reward"),
        ({"train.rollouts": 1, "train.reward": "~/my.py:reward"}, {}, "", "at least 2 answers that it compares"),
        ({"train.overrides": {"rank": 0}}, {}, "", "rank = 0: input should be greater than or equal to 1"),
        ({}, {}, "[train.overrides]\nreplay_ratio = 0.5", "take replay_ratio out of train.overrides. (from "),
    ],
)
def test_a_wrong_setting_is_one_sentence(
    tmp_path: Path, flags: dict[str, object], environ: dict[str, str], file: str, sentence: str
) -> None:
    write(tmp_path, file)
    with pytest.raises(SettingsError) as caught:
        read(tmp_path, flags, **environ)
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_file_that_was_named_must_exist(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="does not exist"):
        load(file=tmp_path / "no.toml", environ={})


def test_secrets_are_masked_and_never_in_an_error(tmp_path: Path) -> None:
    loaded = read(tmp_path, RLPROXY_SERVER__API_KEY="hunter2")
    rows = {row.key: row for row in loaded.describe()}
    assert rows["server.api_key"].value == "**********"
    assert "hunter2" not in repr(loaded)
    with pytest.raises(SettingsError) as caught:
        read(tmp_path, {"server.api_key": ["hunter2"]})
    assert "hunter2" not in str(caught.value)


def test_an_empty_key_is_no_key(tmp_path: Path) -> None:
    assert read(tmp_path, {"server.api_key": ""}).settings.server.api_key is None


def test_every_setting_says_what_it_is() -> None:
    said = meanings(Settings)
    assert list(said) == list(fields())
    for key, sentence in said.items():
        assert sentence.endswith("."), key


def test_the_example_has_every_setting_at_its_default(tmp_path: Path) -> None:
    lines = EXAMPLE.read_text().splitlines()
    active = [line[1:] if line.startswith("#") and not line.startswith("# ") else line for line in lines]
    file = tmp_path / "all.toml"
    file.write_text("\n".join(active))
    loaded = load(file=file, environ={})

    assert loaded.settings == Settings()
    assert {key for key, source in loaded.sources.items() if source == "default"} == set()


def test_the_example_explains_each_setting_in_its_own_words() -> None:
    lines = EXAMPLE.read_text().splitlines()
    for key, sentence in meanings(Settings).items():
        at = lines.index(f"# {sentence}")
        assert lines[at + 1].startswith(f"#{key.rpartition('.')[2]} = "), key


@pytest.mark.parametrize("key", ["BACKEND__URL", "BACKEND__REPLICAS"])
def test_an_address_with_a_login_is_refused_and_not_repeated(tmp_path: Path, key: str) -> None:
    url = "http://me:hunter2@localhost:8000"
    given = json.dumps([url]) if key.endswith("REPLICAS") else url
    with pytest.raises(SettingsError, match=r"put the key into backend\.api_key") as error:
        read(tmp_path, **{f"RLPROXY_{key}": given})
    assert "hunter2" not in str(error.value)


@pytest.mark.parametrize("key", ["BACKEND__URL", "BACKEND__REPLICAS", "JUDGE__URL"])
@pytest.mark.parametrize(
    ("url", "reason"),
    [
        ("127.0.0.1:8000", "no scheme; write http://"),
        ("localhost:8000/v1", "no scheme; write http://"),
        ("api.example.com", "no scheme; write http://"),
        ("unix:///run/llama.sock", "does not open Unix sockets"),
        ("unix:/run/llama.sock", "does not open Unix sockets"),
        ("ftp://127.0.0.1/v1", "should begin with http://"),
        ("http+unix://%2Frun%2Fx/v1", "should begin with http://"),
        ("https://h/openai?api-version=hunter2", "leave out `\\?`"),
        ("https://h/v1#hunter2", "leave out `\\?` or `#`"),
        ("http://h:8000/v1 ", "a blank"),
        ("http://h:8000/\u0007", "a control character"),
        ("http://", "should name a machine"),
        ("http:///v1", "should name a machine"),
        ("http://h:99999", "should name a machine"),
        ("http://h:x", "should name a machine"),
        ("http://[::1", "should name a machine"),
    ],
)
def test_an_address_that_nothing_can_be_added_to_is_refused(tmp_path: Path, key: str, url: str, reason: str) -> None:
    given = json.dumps([url]) if key.endswith("REPLICAS") else url
    with pytest.raises(SettingsError, match=reason) as error:
        read(tmp_path, **{f"RLPROXY_{key}": given})
    assert "hunter2" not in str(error.value) or "#" in url


@pytest.mark.parametrize("url", ["", "http://h", "HTTPS://h:1/v1/", "http://[::1]:8000", "http://bücher.example/ü"])
def test_addresses_that_are_taken(tmp_path: Path, url: str) -> None:
    assert read(tmp_path, RLPROXY_BACKEND__URL=url).settings.backend.url == url


def test_loading_takes_nothing_heavy_along() -> None:
    script = "import sys, config.settings; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert not {"torch", "transformers", "aiohttp", "aiosqlite", "openai", "rich", "proxy", "trainer", "store"} & {
        *done.stdout.split()
    }


def test_rules_for_turns_come_from_the_file_or_the_environment(tmp_path: Path) -> None:
    write(tmp_path, '[[turns.rules]]\nname = "cron"\nlast = "^CRON"\n')
    assert [rule.name for rule in read(tmp_path).settings.turns.rules] == ["cron"]
    on_top = read(tmp_path, RLPROXY_TURNS__RULES='[{"name": "mine", "turn": "main", "max_tokens": 3}]')
    assert [rule.turn for rule in on_top.settings.turns.rules] == ["main"]


@pytest.mark.parametrize("rules", ["[", '[{"name": "x"}]', '[{"name": "x", "last": "("}]'])
def test_a_wrong_rule_is_one_sentence(tmp_path: Path, rules: str) -> None:
    with pytest.raises(SettingsError, match=r"turns\.rules") as caught:
        read(tmp_path, RLPROXY_TURNS__RULES=rules)
    assert "\n" not in str(caught.value)


def test_a_further_model_has_its_address_in_the_file_and_its_key_in_a_variable(tmp_path: Path) -> None:
    write(tmp_path, '[models.coder]\nurl = "http://h:1"\nmodel = "Qwen"\n[models."q2.5"]\nkind = "ollama"\n')
    loaded = read(tmp_path, RLPROXY_MODELS__CODER__API_KEY="hidden-key")
    coder, small = loaded.settings.models["coder"], loaded.settings.models["q2.5"]
    assert (coder.url, coder.model, coder.kind) == ("http://h:1", "Qwen", "openai")
    assert coder.api_key is not None and coder.api_key.get_secret_value() == "hidden-key"
    assert small.address == "http://127.0.0.1:11434"
    assert loaded.sources["models"].endswith("and env RLPROXY_MODELS__CODER__API_KEY")
    assert "hidden-key" not in str([row for row in loaded.describe() if row.key == "models"])
    whole = read(tmp_path, RLPROXY_MODELS='{"coder": {"kind": "vllm"}}').settings.models["coder"]
    assert (whole.url, whole.kind) == ("http://h:1", "vllm"), "a variable changes what it names"


@pytest.mark.parametrize(
    ("file", "sentence"),
    [
        ('[models.coder]\napi_key = "hidden-key"', "models.coder: its value from file"),
        ('[models.coder]\nurl = "http://h:1"\napikey = "hidden-key"', "models.coder.apikey: its value from file"),
        ('[models.coder]\nurl = "http://h:1"\nkind = "builtin"', "models.coder.kind: 'builtin' from file"),
        ('[models."A B"]\nurl = "http://h:1"', "string should match pattern"),
    ],
)
def test_a_wrong_further_model_is_one_sentence_without_its_key(tmp_path: Path, file: str, sentence: str) -> None:
    write(tmp_path, file)
    with pytest.raises(SettingsError) as caught:
        read(tmp_path, RLPROXY_MODELS__CODER__MODEL="m")
    assert sentence in str(caught.value) and "hidden-key" not in str(caught.value)
