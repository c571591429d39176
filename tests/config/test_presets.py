from __future__ import annotations

import pytest

from config.errors import SettingsError
from config.presets import REMOVED, Preset, names, resolve


def test_there_are_three() -> None:
    assert set(names()) == {"careful", "balanced", "aggressive"}


@pytest.mark.parametrize("name", names())
def test_every_preset_has_every_value(name: str) -> None:
    assert isinstance(resolve(name, {}), Preset)


def test_careful_learns_slower_and_stays_nearer() -> None:
    careful, balanced, aggressive = (resolve(name, {}) for name in ("careful", "balanced", "aggressive"))
    assert careful.learning_rate < balanced.learning_rate < aggressive.learning_rate
    assert careful.kl_ref > balanced.kl_ref > aggressive.kl_ref


def test_an_override_replaces_one_value_and_text_is_read_as_a_number() -> None:
    preset = resolve("careful", {"learning_rate": "1e-3"})
    assert preset == resolve("careful", {}).model_copy(update={"learning_rate": 1e-3})


def test_unknown_names_are_answered_with_the_nearest() -> None:
    with pytest.raises(SettingsError, match="did you mean 'balanced'"):
        resolve("balancd", {})
    with pytest.raises(SettingsError, match="did you mean 'learning_rate'"):
        resolve("balanced", {"learning-rate": 1})


def test_a_value_out_of_range_is_named() -> None:
    with pytest.raises(SettingsError, match="token_low = 2"):
        resolve("balanced", {"token_low": 2})


@pytest.mark.parametrize("name", ["hinted_replies", "learning_rate"])
def test_a_yes_is_no_number(name: str) -> None:
    """`hinted_replies` was a yes or no once: a yes would be one reply now, and a rate of 1."""
    with pytest.raises(SettingsError, match=f"Preset value {name} = True: a number is needed"):
        resolve("balanced", {name: True})
    assert not resolve("balanced", {"balance": False}).balance


@pytest.mark.parametrize("name", REMOVED)
def test_a_value_of_an_earlier_release_is_refused_with_what_became_of_it(name: str) -> None:
    with pytest.raises(SettingsError, match=f"{name} was removed: .* take {name} out of train.overrides") as caught:
        resolve("balanced", {"rank": 4, name: 0})
    assert REMOVED[name] in str(caught.value)
    assert name not in Preset.model_fields
