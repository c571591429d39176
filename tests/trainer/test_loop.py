"""Whole runs on a tiny model: what they leave, what they refuse, and that they go on where they were stopped."""

import json
import re
import shutil

import numpy as np
import pytest

from config import presets
from tests.harness import tiny
from tests.trainer.formats.test_model_info import MIXTURES, make
from tests.trainer.runs import StopAfter, go, of, second, tensors
from trainer import loop
from trainer.io.progress import Stop, Stopped
from trainer.launch import verify_adapter
from trainer.lessons import reply_checks
from trainer.policy import packing, policies
from trainer.policy.torch_policy import TorchPolicy
from trainer.run import gate

DENSE = "dense: every linear layer but the head"
CREDITED = presets.resolve("balanced", {}).rate_credited


def without_time(event):
    return {name: value for name, value in event.items() if name != "at"}


def test_a_run_leaves_an_adapter_that_verifies(tmp_path, model, lines):
    folder = tiny.run_folder(tmp_path / "run", model, lines)
    result, events = go(folder)
    assert result["status"] == "passed", result["reason"]
    assert result == json.loads((folder / "result.json").read_bytes())
    manifest = verify_adapter(tmp_path / "out" / "v0001")
    train = [line["rating"] for line in lines if line["split"] == "train"]
    assert manifest["samples"] == sorted(train)
    assert manifest["metrics"]["steps"] == len(of(events, "step")) == 4  # 10 samples in batches of about 4, twice
    named = "contrast chance finite no_op replay margin text_nll empty looping repetition refusals length topic"
    assert {*named.split(), "base_nll", "entropy"} == set(result["gate"])
    assert all(outcome["used"] == (rating in train) for rating, outcome in result["samples"].items() if rating in train)
    assert result["baseline_after"] == pytest.approx(
        loop.mis_po.ema(0.0, [x["reward"] for x in reversed(lines) if x["split"] == "train"], 0.99)
    )
    assert result["metrics"]["acceptance"] == 1
    assert without_time(events[0]) == {"event": "start", "run": 1, "device": "cpu", "why": "no CUDA found"}
    assert [e["phase"] for e in of(events, "phase")] == ["load", "old", "train", "gate", "write"]
    assert all(e["why"] for e in of(events, "choice"))
    assert without_time(events[-1]) == {"event": "end", "status": "passed", "reason": result["reason"]}
    assert [e["at"] for e in events] == sorted(e["at"] for e in events)
    assert [json.loads(x) for x in (folder / "progress.jsonl").read_text().splitlines()] == events


def test_a_run_says_what_model_it_has_and_what_follows(tmp_path, model, lines):
    _, events = go(tiny.run_folder(tmp_path / "run", model, lines))
    told = {e["name"]: (e["value"], e["why"]) for e in of(events, "choice")}
    assert told["model"] == ("llama, dense, 90.6 K parameters", "counted in the headers of its safetensors")
    assert told["layers"] == ("down_proj gate_proj k_proj o_proj q_proj up_proj v_proj", DENSE)
    assert told["learning_rate"] == (2e-4, "set in run.json (train.overrides); this model would get 0.001")
    assert told["kl_ref"] == (0.05, "preset balanced")


def test_a_run_on_a_mixture_of_experts_trains_its_attention(tmp_path):
    moe = tmp_path / "moe"
    make(moe, "Mixtral", initializer_range=0.2, **MIXTURES["Mixtral"])
    tiny.tokenizer().save_pretrained(moe)
    folder = tiny.run_folder(tmp_path / "run", moe, tiny.sample_lines(moe))
    result, events = go(folder)
    assert result["status"] == "passed", result["reason"]
    told = {e["name"]: (e["value"], e["why"]) for e in of(events, "choice")}
    assert told["layers"][0] == "k_proj o_proj q_proj v_proj"
    assert told["kl_ref"][0] == 0.025
    assert told["rank"][1] == "set in run.json (train.overrides); this model would get 24"
    manifest = verify_adapter(tmp_path / "out" / "v0001")
    assert (manifest["preset"]["kl_ref"], manifest["preset"]["rank"]) == (0.025, 4)
    assert all(".self_attn." in name for name in tensors(tmp_path / "out" / "v0001"))


def test_recomputing_activations_changes_no_bit_of_a_run(tmp_path, model, lines, monkeypatch):
    found = []
    for name, comfortable in (("kept", 1 << 30), ("recomputed", 0)):
        monkeypatch.setattr("trainer.policy.footprint.COMFORTABLE", comfortable)
        result, events = go(tiny.run_folder(tmp_path / name / "run", model, lines))
        assert result["status"] == "passed", result["reason"]
        (on,) = [e["value"] for e in of(events, "choice") if e["name"] == "gradient_checkpointing"]
        assert on is (comfortable == 0)
        found.append(tensors(tmp_path / name / "out" / "v0001"))
    for key, tensor in found[0].items():
        np.testing.assert_array_equal(tensor, found[1][key])


def test_it_learns_what_was_rated(tmp_path, model, lines):
    folder = tiny.run_folder(
        tmp_path / "run", model, lines, overrides={"learning_rate": 3e-3, "passes": 4, "drift_bound": 10.0}
    )
    result, _ = go(folder)
    assert result["status"] == "passed"
    policy = tiny.policy(model)
    samples, _ = loop.samples.load(folder / "samples.jsonl", loop.Template(policy.tokenizer), max_seq_len=999)
    train = [s for s in samples if not s.is_held_back]
    packed = packing.pack([s.tokens for s in train])
    before = policy.log_probs(packed).plain
    with policy.wearing(tmp_path / "out" / "v0001"):
        gained = np.split(policy.log_probs(packed).plain - before, np.cumsum(packed.lengths)[:-1])
    liked = np.mean([g.mean() for g, s in zip(gained, train, strict=True) if s.reward > 0])
    disliked = np.mean([g.mean() for g, s in zip(gained, train, strict=True) if s.reward < 0])
    assert liked > 0.05
    assert disliked < -0.05


def ended(model, lines, adapter=None):
    """Half of the replies end by themselves, and those are liked."""
    policy = tiny.policy(model, parent=adapter)
    end = loop.Template(policy.tokenizer).end
    rows = []
    for i, line in enumerate(lines):
        reply = [t for t in line["token_ids"] if t != end] or [5]
        rows.append(packing.Tokens(tuple(line["prompt_token_ids"]), (*reply, end) if i % 2 else tuple(reply), 0.8))
    packed = packing.pack(rows)
    logprobs = np.split(policy.log_probs(packed).sampled, np.cumsum(packed.lengths)[:-1])
    return [
        line
        | {"token_ids": list(row.reply), "logprobs": part.tolist(), "reward": 1.0 if row.reply[-1] == end else -1.0}
        for line, row, part in zip(lines, rows, logprobs, strict=True)
    ]


def test_what_earned_the_ratings_is_learned_and_little_else(tmp_path, model):
    lines = ended(model, tiny.sample_lines(model, 40))
    folder = tiny.run_folder(
        tmp_path / "run", model, lines, overrides={"learning_rate": 3e-3, "passes": 4, "drift_credited": 1.0}
    )
    result, events = go(folder)
    assert result["status"] == "passed", result["reason"]
    told = {e["name"]: (e["value"], e["why"]) for e in of(events, "choice")}
    assert told["pushed"][0] == "by token" and "of the ratings" in told["pushed"][1]
    assert told["learning_rate"][0] == pytest.approx(3e-3 * CREDITED)
    train = [line for line in lines if line["split"] == "train"]
    assert all(result["samples"][line["rating"]]["used"] for line in train)
    policy = tiny.policy(model)
    rows = [packing.Tokens(tuple(x["prompt_token_ids"]), tuple(x["token_ids"]), 0.8) for x in train]
    packed = packing.pack(rows)
    before = policy.log_probs(packed).plain
    with policy.wearing(tmp_path / "out" / "v0001"):
        gained = np.split(policy.log_probs(packed).plain - before, np.cumsum(packed.lengths)[:-1])
    ends = [g[-1] for g, line in zip(gained, train, strict=True) if line["reward"] > 0]
    others = np.concatenate([g[:-1] for g in gained])
    assert np.mean(ends) > 0.2 and np.mean(ends) > 5 * abs(np.mean(others))


def test_what_earned_nothing_moves_less_where_it_is_to_stay(tmp_path, model):
    lines, moved = ended(model, tiny.sample_lines(model, 40)), {}
    for w in (1e-6, 10.0):
        overrides = {"learning_rate": 3e-3, "passes": 4, "drift_credited": 1.0, "w_stay": w}
        result, events = go(tiny.run_folder(tmp_path / f"{w:g}" / "run", model, lines, overrides=overrides))
        assert result["status"] == "passed" and of(events, "step")[0]["kl_stay"] == 0
        moved[w] = result["metrics"]["kl_stay"]
    assert 0 < moved[10.0] < 0.5 * moved[1e-6]


def test_a_run_by_token_moves_as_far_as_it_may_and_has_heard_every_rating(tmp_path, model):
    lines = ended(model, tiny.sample_lines(model, 40))
    overrides = {"passes": 4, "learning_rate": 1e-2, "drift_credited": 1e-2, "w_stay": 0.01, "w_elsewhere": 0.01}
    result, events = go(tiny.run_folder(tmp_path / "run", model, lines, overrides=overrides))
    assert result["status"] == "passed", result["reason"]
    told = {e["name"]: e["value"] for e in of(events, "choice")}
    assert len(of(events, "step")) < told["steps"] and 0 < told["way"] < 1
    assert all("kl_stay" in e for e in of(events, "step"))
    assert 5e-3 < result["metrics"]["kl_old"] < 1.5e-2
    assert all(result["samples"][line["rating"]]["used"] for line in lines if line["split"] == "train")


def rated_by_their_tone(model, count=64):
    """The model's own replies, liked where their states, a little more so at the end, are on one side of the widest
    spread of all."""
    policy, lines = tiny.policy(model), tiny.sample_lines(model, count)
    replies = [
        (*line["token_ids"], line["token_ids"][-1]) for line in lines
    ]  # one more: what is before it ends a reply
    packed = packing.pack(
        [packing.Tokens(tuple(x["prompt_token_ids"]), r, 0.8) for x, r in zip(lines, replies, strict=True)]
    )
    states = np.split(policy.states(packed), np.cumsum(packed.lengths)[:-1])
    tones = np.stack([one[1:].mean(0) + 0.2 * one[-1] for one in states])
    tones -= tones.mean(0)
    side = tones @ np.linalg.svd(tones, full_matrices=False)[2][0]
    return [line | {"reward": 1.0 if at > np.median(side) else -1.0} for line, at in zip(lines, side, strict=True)]


def test_a_taste_all_over_a_reply_is_taught_by_leaning_at_a_bounded_price(tmp_path, model):
    lines, gate_bounds = rated_by_their_tone(model), {**tiny.LOOSE, "base_nll_rise": 0.04}
    overrides = {"learning_rate": 2e-2, "drift_bound": 100.0}
    result, events = go(tiny.run_folder(tmp_path / "run", model, lines, overrides=overrides, gate=gate_bounds))
    told = {e["name"]: (e["value"], e["why"]) for e in of(events, "choice")}
    assert told["pushed"][0] == "by leaning" and "mean states" in told["pushed"][1]
    assert result["status"] == "passed", result["reason"]
    assert all("kl_teacher" in e for e in of(events, "step"))
    assert "taught" not in result["metrics"]  # by ratings, not by what somebody said
    check = result["gate"]["base_nll"]
    assert check["bound"] == 0.04  # which ratings do not raise
    assert 0 < told["way"][0] < 1 and "of sense" in told["way"][1] and check["ok"]
    used = [line["rating"] for line in lines if line["split"] == "train"]
    assert all(result["samples"][rating]["used"] for rating in used)


def test_a_reply_that_another_model_gave_teaches_no_leaning(tmp_path, model):
    bounds, overrides = {**tiny.LOOSE, "base_nll_rise": 0.04}, {"learning_rate": 2e-2, "drift_bound": 100.0}
    lines = [line | {"logprobs": [x - 3 for x in line["logprobs"]]} for line in rated_by_their_tone(model)]
    result, _ = go(tiny.run_folder(tmp_path / "run", model, lines, overrides=overrides, gate=bounds))
    assert result["status"] == "empty" and "fresh-mismatch" in result["reason"]


def test_a_runaway_by_token_is_stopped_and_not_brought_back(tmp_path, model):
    lines = ended(model, tiny.sample_lines(model, 40))
    result, events = go(tiny.run_folder(tmp_path / "run", model, lines, overrides={"learning_rate": 1.0}))
    assert {e["name"]: e["value"] for e in of(events, "choice")}["pushed"] == "by token"
    assert result["status"] == "failed" and result["adapter"] is None
    assert "the very first step went too far: " in result["reason"]
    assert "lower train.overrides.learning_rate" in result["reason"]
    # The first try is told as it was: advice is for a run that came to nothing.
    assert not any("learning_rate" in event["message"] for event in of(events, "warning"))
    assert not (tmp_path / "out").exists()


def test_ratings_that_no_critic_sees_push_all_tokens_alike(tmp_path, model):
    lines = ended(model, tiny.sample_lines(model, 40))
    for overrides in ({"credit": 1.0}, {"credit": 0.99}):
        _, events = go(tiny.run_folder(tmp_path / str(overrides) / "run", model, lines, overrides=overrides))
        told = {e["name"]: e["value"] for e in of(events, "choice")}
        assert told.get("pushed", "even") == "even" and told["learning_rate"] == 2e-4 and "likely" in told


def test_a_finished_folder_only_reports(tmp_path, model, lines, monkeypatch):
    folder = tiny.run_folder(tmp_path / "run", model, lines)
    first, _ = go(folder)
    monkeypatch.setattr(loop, "policies", None)
    again, events = go(folder)
    assert again == first
    assert [without_time(e) for e in events] == [{"event": "end", "status": "passed", "reason": first["reason"]}]


def test_the_newest_ratings_move_the_baseline_most(tmp_path, model, lines):
    """samples.jsonl is newest first."""
    lines = [line | {"reward": 1.0 if n < len(lines) // 2 else -1.0} for n, line in enumerate(lines)]
    result, _ = go(tiny.run_folder(tmp_path / "run", model, lines))
    assert result["status"] == "passed", result["reason"]
    rewards = [line["reward"] for line in lines if line["split"] == "train"]
    assert sum(rewards) == 0
    assert result["baseline_after"] > 0


@pytest.mark.parametrize("step", [1, 3, 4])
def test_a_stopped_run_goes_on_as_if_it_never_stopped(tmp_path, model, lines, step):
    whole = tiny.run_folder(tmp_path / "a" / "run", model, lines)
    go(whole)
    folder = tiny.run_folder(tmp_path / "b" / "run", model, lines)
    stop = Stop()
    with StopAfter(folder, stop, step) as progress, pytest.raises(Stopped):
        loop.run(folder, progress, stop)
    assert not (folder / "result.json").exists()
    assert not (tmp_path / "b" / "out").exists()
    result, events = go(folder)
    assert result["status"] == "passed"
    assert [e["step"] for e in of(events, "step")] == list(range(step + 1, 5))
    one, other = tensors(tmp_path / "a" / "out" / "v0001"), tensors(tmp_path / "b" / "out" / "v0001")
    for name in one:
        np.testing.assert_array_equal(one[name], other[name])


def test_a_run_by_token_goes_on_too_where_a_rating_says_nothing(tmp_path, model):
    """Credits come from hidden states that depend, in their last bits, on what is read beside them."""
    lines = ended(model, tiny.sample_lines(model, 40))
    for line in [line for line in lines if line["split"] == "train"][:6:2]:
        line["reward"] = 0.0
    overrides = {"passes": 2, "learning_rate": 3e-3}
    folder, stop = tiny.run_folder(tmp_path / "run", model, lines, overrides=overrides), Stop()
    with StopAfter(folder, stop, 2) as progress, pytest.raises(Stopped):
        loop.run(folder, progress, stop)
    result, events = go(folder)
    assert result["status"] == "passed", result["reason"]
    told = {e["name"]: e["value"] for e in of(events, "choice")}
    assert told["pushed"] == "by token" and told["resume"] == 2
    assert not of(events, "warning")


def test_killed_after_the_write_it_does_not_write_again(tmp_path, model, lines):
    folder = tiny.run_folder(tmp_path / "run", model, lines)
    go(folder)
    before = (tmp_path / "out" / "v0001" / "manifest.json").read_bytes()
    (folder / "result.json").unlink()
    result, events = go(folder)
    assert result["status"] == "passed"
    assert of(events, "step") == []
    assert (tmp_path / "out" / "v0001" / "manifest.json").read_bytes() == before


def test_a_checkpoint_of_other_samples_is_not_used(tmp_path, model, lines):
    folder = tiny.run_folder(tmp_path / "run", model, lines)
    go(folder)
    other = tiny.run_folder(tmp_path / "other" / "run", model, lines[:8])
    (folder / "checkpoint").rename(other / "checkpoint")
    result, events = go(other)
    assert result["status"] == "passed"
    assert "other samples" in of(events, "warning")[0]["message"]
    (other / "result.json").unlink()
    (other / "checkpoint" / "state.safetensors").write_bytes(b"torn")
    _, events = go(other)
    assert "cannot be read" in of(events, "warning")[0]["message"]


def test_the_gate_asks_in_the_languages_of_the_run(tmp_path, model, lines):
    result, _ = go(tiny.run_folder(tmp_path / "run", model, lines, languages=["de", "en"]))
    assert result["status"] == "passed"
    assert re.fullmatch(r"de [+-]\d\.\d{3}, en [+-]\d\.\d{3}", result["gate"]["text_nll"]["note"])


@pytest.mark.parametrize(
    ("codes", "reason"),
    [(["de", "xx"], "asks for the languages"), (["de", "de"], "asks for"), (["de", "en", "fr"], "in 2 at most")],
)
def test_languages_that_no_gate_asks_in_fail_in_words(tmp_path, model, lines, codes, reason):
    result, _ = go(tiny.run_folder(tmp_path / "run", model, lines, languages=codes))
    assert result["status"] == "failed" and reason in result["reason"]


def neutral(line):
    return line | {"reward": 0.0}


@pytest.mark.parametrize(
    ("change", "spec", "why"),
    [
        (lambda line: None, {}, "no samples"),
        (neutral, {}, "all 12 ratings are the same"),
        (lambda line: line | {"split": "held"}, {}, "no samples"),
        (lambda line: line | {"finish_reason": "length", "human": False}, {}, "truncated"),
        (lambda line: line | {"logprobs": [x - 1 for x in line["logprobs"]]}, {}, "fresh-mismatch"),
        (lambda line: line | {"logprobs": [-30.0] * len(line["logprobs"])}, {"overrides": {"band": "off"}}, "token"),
        (lambda line: line | {"logprobs": None}, {}, "unusable"),
    ],
)
def test_nothing_to_learn_is_said_and_publishes_nothing(tmp_path, model, lines, monkeypatch, change, spec, why):
    monkeypatch.setattr(TorchPolicy, "step", lambda *_: pytest.fail("an optimiser step was taken"))
    changed = [c for c in map(change, lines) if c]
    result, _ = go(tiny.run_folder(tmp_path / "run", model, changed, **spec))
    assert result["status"] == "empty"
    assert why in result["reason"]
    assert result["baseline_after"] == 0.0
    assert not (tmp_path / "out").exists()


def test_one_bad_line_does_not_lose_the_run(tmp_path, model, lines):
    folder = tiny.run_folder(tmp_path / "run", model, lines)
    with (folder / "samples.jsonl").open("a") as file:
        file.write("{torn\n" + json.dumps(lines[0] | {"rating": "rt-bad", "logprobs": [0.1]}) + "\n")
    result, events = go(folder)
    assert result["status"] == "passed"
    assert result["samples"]["rt-bad"]["cause"] == result["samples"]["line 13"]["cause"] == "unusable"
    assert len(of(events, "warning")) == 2


@pytest.mark.parametrize(("rate", "status"), [(1e-9, "rejected"), (3e-3, "passed")])
def test_rounding_is_no_change(tmp_path, model, lines, monkeypatch, rate, status):
    """bf16 rounds a token's log-prob by what is computed beside it: as much as a small step changes it."""
    real = TorchPolicy.log_probs

    def rounded(self, packed, states=None):
        scored = real(self, packed, states)
        return scored._replace(plain=scored.plain + 5e-3 * np.sin(len(packed.target) + np.arange(len(packed.target))))

    monkeypatch.setattr(TorchPolicy, "log_probs", rounded)
    result, _ = go(tiny.run_folder(tmp_path / "run", model, lines, overrides={"learning_rate": rate, "band": "off"}))
    assert result["status"] == status, result["reason"]
    assert ("no_op" in result["reason"]) == (status == "rejected")


def test_a_number_that_is_not_finite_publishes_nothing(tmp_path, model, lines, monkeypatch):
    monkeypatch.setattr(TorchPolicy, "backward", lambda *_: {"loss": float("nan"), "kl_old": 0.0})
    result, _ = go(tiny.run_folder(tmp_path / "run", model, lines))
    assert result["status"] == "failed"
    assert "not finite" in result["reason"]
    assert not (tmp_path / "out").exists()


NO_MEMORY = (
    "[enforce fail at alloc_cpu.cpp:127] . DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes."
)


def cramped(monkeypatch, fits):
    """The policy as it is, on a machine where a backward pass of more than `fits` sequences finds no memory."""
    real, sizes = TorchPolicy._backward, []

    def backward(self, packed, terms, loss):
        sizes.append(len(packed.lengths))
        sums = real(self, packed, terms, loss)  # its gradient is there already when memory runs out
        if len(packed.lengths) > fits:
            raise RuntimeError(NO_MEMORY)
        return sums

    monkeypatch.setattr(TorchPolicy, "_backward", backward)
    return sizes


def test_out_of_memory_halves_the_micro_batches_and_never_steps_twice(tmp_path, model, lines, monkeypatch):
    roomy, _ = go(tiny.run_folder(tmp_path / "a" / "run", model, lines))
    sizes = cramped(monkeypatch, fits=2)
    result, events = go(tiny.run_folder(tmp_path / "b" / "run", model, lines))
    assert result["status"] == "passed", result["reason"]
    assert max(sizes) > 2
    assert sizes[-1] <= 2
    told = [e["message"] for e in of(events, "warning") if "out of memory" in e["message"]]
    assert len(told) == sum(size > 2 for size in sizes)
    assert "from at most 8192" in told[0]
    assert result["metrics"]["steps"] == roomy["metrics"]["steps"] == len(of(events, "step"))
    one, other = tensors(tmp_path / "a" / "out" / "v0001"), tensors(tmp_path / "b" / "out" / "v0001")
    for name in one:
        np.testing.assert_allclose(other[name], one[name], rtol=1e-3, atol=1e-5)


def test_out_of_memory_with_one_sequence_fails_and_says_so(tmp_path, model, lines, monkeypatch):
    monkeypatch.setattr(TorchPolicy, "step", lambda *_: pytest.fail("an optimiser step was taken"))
    cramped(monkeypatch, fits=0)
    result, _ = go(tiny.run_folder(tmp_path / "run", model, lines))
    assert result["status"] == "failed"
    assert "out of memory with a single sequence" in result["reason"]
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("error", [MemoryError(), RuntimeError("CUDA out of memory. Tried to allocate 2 GiB")])
def test_out_of_memory_anywhere_says_what_to_do(tmp_path, model, lines, monkeypatch, error):
    """The model does not fit, so that no smaller micro-batch helps."""

    def full(*_, **__):
        raise error

    monkeypatch.setattr(policies, "open_policy", full)
    result, _ = go(tiny.run_folder(tmp_path / "run", model, lines))
    assert result["status"] == "failed" and result["reason"].startswith("out of memory (")
    assert "fresh again" in result["reason"] and "train.share_gpu" in result["reason"]


def test_another_error_is_no_lack_of_memory(tmp_path, model, lines, monkeypatch):
    def broken(*_):
        raise RuntimeError("shapes do not match")

    monkeypatch.setattr(TorchPolicy, "_backward", broken)
    result, events = go(tiny.run_folder(tmp_path / "run", model, lines))
    assert result["reason"] == "RuntimeError: shapes do not match"
    assert not any("out of memory" in e["message"] for e in of(events, "warning"))


def test_the_drift_bound_keeps_the_last_good_step(tmp_path, model, lines):
    overrides = {"learning_rate": 1e-2, "passes": 4, "drift_bound": 0.2}
    result, events = go(tiny.run_folder(tmp_path / "run", model, lines, overrides=overrides))
    assert result["status"] == "passed", result["reason"]
    assert "drift bound" in result["reason"]
    assert 0 < result["metrics"]["steps"] < 8
    assert any("last good step" in e["message"] for e in of(events, "warning"))


@pytest.mark.parametrize("passes", [1, 2])
def test_a_first_step_too_far_is_halved(tmp_path, model, lines, passes):
    """Half of AdamW's first step is the first step of half the rate, and takes no second try."""
    runs = {}
    for name, rate in (("whole", 4e-2), ("half", 2e-2)):
        overrides = {"passes": passes, "batch": 100, "learning_rate": rate}  # they move it by 1.57 and 0.65 nats
        runs[name] = go(tiny.run_folder(tmp_path / name / "run", model, lines, overrides=overrides))
    (result, events), (_, half_events) = runs.values()
    assert result["status"] == "passed" and result["retried"] is None, result["reason"]
    share, reason = {e["name"]: (e["value"], e["why"]) for e in of(events, "choice")}["first_step"]
    assert share == 0.5 and "drift bound" in reason
    assert len(of(events, "step")) == len(of(half_events, "step")) == passes
    assert [e["rate"] for e in of(events, "step")][1:] == [e["rate"] for e in of(half_events, "step")][1:]
    halved, half = (tensors(tmp_path / name / "out" / "v0001") for name in runs)
    for name, tensor in half.items():
        np.testing.assert_allclose(halved[name], tensor, atol=2e-5)


def test_a_first_step_too_far_fails(tmp_path, model, lines):
    overrides = {"learning_rate": 0.5, "drift_bound": 0.01}
    result, _ = go(tiny.run_folder(tmp_path / "run", model, lines, overrides=overrides))
    assert result["status"] == "failed"
    assert "learning_rate" in result["reason"]
    assert not (tmp_path / "out").exists()


def test_what_the_gate_refuses_is_kept_beside_the_run(tmp_path, model, lines):
    folder = tiny.run_folder(tmp_path / "run", model, lines, gate=tiny.LOOSE | {"base_nll_rise": -1.0})
    result, _ = go(folder)
    assert result["status"] == "rejected"
    assert "base_nll" in result["reason"]
    assert "at half the rate too" in result["reason"]
    assert result["baseline_after"] == 0.0
    assert verify_adapter(folder / "rejected")["gate"]["base_nll"]["ok"] is False
    assert not (tmp_path / "out").exists()


@pytest.fixture(scope="module")
def borderline(tmp_path_factory, model, lines):
    """A bound that a run at rate 0.02 breaks, and one at half of it does not; not of base_nll, where half of the way
    back comes first."""
    place = tmp_path_factory.mktemp("borderline")
    values = []
    for rate in (0.02, 0.01):
        changes = {"overrides": {"learning_rate": rate, "drift_bound": 50.0}}
        result, _ = go(tiny.run_folder(place / str(rate) / "run", model, lines, **changes))
        values.append(result["gate"]["entropy"]["value"])
    assert values[0] < values[1]
    return {
        "overrides": {"learning_rate": 0.02, "drift_bound": 50.0},
        "gate": tiny.LOOSE | {"min_entropy_ratio": sum(values) / 2},
    }, place / "0.01" / "out" / "v0001"


def test_a_refused_candidate_has_a_second_try_at_half_the_rate(tmp_path, model, lines, borderline, monkeypatch):
    changes, half = borderline
    real, asked = gate.answer_all, []
    monkeypatch.setattr(gate, "answer_all", lambda *given, **times: asked.append(1) or real(*given, **times))
    result, events = go(tiny.run_folder(tmp_path / "run", model, lines, **changes))
    assert result["status"] == "passed", result["reason"]
    assert len(of(events, "warning")) == 1  # nothing is said of the first try's checkpoint
    assert "entropy" in result["retried"]
    assert "That was a second try, at half the rate; the first was dropped: " in result["reason"]
    assert [e["step"] for e in of(events, "step")] == [1, 2, 3, 4, 1, 2, 3, 4]
    assert any("once more" in e["message"] for e in of(events, "warning"))
    assert len(asked) == 1 + 1 + 1  # the parent once for both tries, each candidate once
    assert verify_adapter(tmp_path / "out" / "v0001")["preset"]["learning_rate"] == 0.01
    again = tensors(tmp_path / "out" / "v0001")
    for name, tensor in tensors(half).items():  # nothing of the first try is left in it
        np.testing.assert_array_equal(again[name], tensor)


@pytest.mark.parametrize("pushed", ["by token", "even"])
def test_a_run_that_lost_sense_goes_half_of_the_way_back(tmp_path, model, pushed):
    lines = ended(model, tiny.sample_lines(model, 40))
    wild = {"learning_rate": 1.5e-2, "passes": 4, "drift_bound": 50.0, "drift_credited": 50.0, "w_stay": 0.0}
    wild |= {"credit": 0.25 if pushed == "by token" else 1.0}
    whole, steps = go(tiny.run_folder(tmp_path / "whole" / "run", model, lines, overrides=wild))
    bounds = tiny.LOOSE | {"base_nll_rise": whole["gate"]["base_nll"]["value"] * 0.99}
    folder = tiny.run_folder(tmp_path / "run", model, lines, overrides=wild, gate=bounds)
    result, events = go(folder)
    assert result["status"] == "passed", result["reason"]
    assert {e["name"]: e["value"] for e in of(events, "choice")}.get("pushed", "even") == pushed
    assert "Half of what it had learned was taken back" in result["reason"]
    assert len(of(events, "gate")) == 3  # the ratings', and two
    assert result["retried"] is None and "base_nll" in result["back"]
    assert len(of(events, "step")) == len(of(steps, "step"))
    assert result["gate"]["base_nll"]["value"] < bounds["base_nll_rise"]
    assert 0 < result["metrics"]["kl_old"] < whole["metrics"]["kl_old"]
    end, back = tensors(tmp_path / "whole" / "out" / "v0001"), tensors(tmp_path / "out" / "v0001")
    for name in (name for name in end if "lora_B" in name):  # a new adapter's are 0
        np.testing.assert_allclose(back[name], end[name] / 2, atol=1e-6)


def test_what_is_refused_half_of_the_way_back_too_takes_its_pushes_back_elsewhere(tmp_path, model):
    lines = ended(model, tiny.sample_lines(model, 40))
    wild = {"learning_rate": 3e-3, "passes": 8, "drift_bound": 50.0, "drift_credited": 50.0, "w_stay": 0.0}
    wild |= {"w_elsewhere": 1.0}
    refusing = tiny.LOOSE | {"base_nll_rise": -9.0}
    result, events = go(tiny.run_folder(tmp_path / "no" / "run", model, lines, overrides=wild, gate=refusing))
    assert result["status"] == "rejected"
    assert "with its pushes taken back elsewhere too" in result["reason"]
    assert "half of the way back" in result["retried"] and result["reason"].endswith("half of the way back.")
    assert [e["rate"] for e in of(events, "step")] == pytest.approx([3e-3 * CREDITED] * len(of(events, "step")))

    # Between what half of the first try costs and what the whole second one does, the second one may go live.
    _, half, elsewhere, half_of_that = (e["checks"]["base_nll"]["value"] for e in of(events, "gate")[1:])
    assert half_of_that < elsewhere < half
    between = tiny.LOOSE | {"base_nll_rise": (elsewhere + half) / 2}
    result, events = go(tiny.run_folder(tmp_path / "yes" / "run", model, lines, overrides=wild, gate=between))
    assert result["status"] == "passed"
    assert "a second try, with its pushes taken back elsewhere; the first was dropped: base_nll" in result["reason"]
    assert len(of(events, "gate")) == 4  # the ratings', the first try's two, and the second try's


def test_where_the_loss_has_no_place_for_that_the_second_try_is_at_half_the_rate(tmp_path, model):
    lines = ended(model, tiny.sample_lines(model, 40))
    overrides = {"objective": "mis-po-clip", "learning_rate": 3e-3}
    refusing = tiny.LOOSE | {"base_nll_rise": -9.0}
    result, events = go(tiny.run_folder(tmp_path / "run", model, lines, overrides=overrides, gate=refusing))
    assert {e["name"]: e["value"] for e in of(events, "choice")}["pushed"] == "by token"
    assert result["status"] == "rejected" and "at half the rate too" in result["reason"]
    rates = [e["rate"] for e in of(events, "step")]
    assert max(rates) == pytest.approx(2 * min(rates))


def test_a_second_try_goes_on_where_it_was_stopped(tmp_path, model, lines, borderline):
    changes, half = borderline
    folder = tiny.run_folder(tmp_path / "run", model, lines, **changes)
    stop = Stop()

    class StopInTheSecond(StopAfter):
        def event(self, event, **fields):
            if event == "warning":
                self.step = 2
            super().event(event, **fields)

    with StopInTheSecond(folder, stop, -1) as progress, pytest.raises(Stopped):
        loop.run(folder, progress, stop)
    result, events = go(folder)
    assert result["status"] == "passed"
    assert [e["step"] for e in of(events, "step")] == [3, 4]
    for name, tensor in tensors(half).items():
        np.testing.assert_array_equal(tensors(tmp_path / "out" / "v0001")[name], tensor)


@pytest.mark.parametrize(
    ("spec", "why"),
    [
        ({"format": 9}, "format"),
        ({"parent": 3}, "version 3"),
        ({"weights": "/nowhere/at/all"}, "nowhere"),
        ({"preset": "wild"}, "wild"),
        ({"framework": "jax"}, "jax"),
        ({"overrides": {"learning_rat": 1}}, "learning_rate"),
        ({"overrides": {"objective": "ppo"}}, "ppo"),
        ({"gate": {"margins": 1}}, "margins"),
        ({"baseline": 3}, "baseline"),
        ({"out": None}, "wrong"),
        ({"choices": [{"name": "held"}]}, "value"),
    ],
)
def test_an_order_that_cannot_be_followed_fails_with_the_reason(tmp_path, model, lines, spec, why):
    result, events = go(tiny.run_folder(tmp_path / "run", model, lines, **spec))
    assert result["status"] == "failed"
    assert why in result["reason"]
    assert events[-1]["status"] == "failed"


def test_the_second_version_starts_from_the_first(tmp_path, model, first):
    fresh = tiny.sample_lines(model, version=1, adapter=first, seed=5)
    result, events = second(tmp_path, model, fresh, first)
    assert result["status"] == "passed", result["reason"]
    assert result["metrics"]["acceptance_fresh"] == 1
    assert result["metrics"]["kl_ref"] > result["metrics"]["kl_old"]  # one more version away from the base
    assert ["start", "v0001"] in [[e["name"], e["value"]] for e in of(events, "choice")]
    assert ["optimiser", "warm"] in [[e["name"], e["value"]] for e in of(events, "choice")]
    one, other = tensors(first), tensors(tmp_path / "v0002")
    assert 0 < max(np.abs(one[name] - other[name]).max() for name in one) < 0.05


def test_a_critic_goes_with_its_version_so_that_few_dislikes_are_enough(tmp_path, model):
    told = {}
    for path, kept_too in (("with", True), ("without", False)):
        lines = ended(model, tiny.sample_lines(model, 40))
        folder = tiny.run_folder(tmp_path / path / "one" / "run", model, lines)
        assert go(folder)[0]["status"] == "passed"
        first = folder.parent / "out" / "v0001"
        if not kept_too:
            (first / "critic.safetensors").unlink()
        verify_adapter(first)
        fresh = ended(model, tiny.sample_lines(model, 40, version=1, adapter=first, seed=5), first)
        few = [line for line in fresh if line["reward"] > 0] + [line for line in fresh if line["reward"] < 0][:3]
        _, events = second(tmp_path / path / "two", model, few, first, overrides={"band": "off"})
        told[path] = next(e for e in of(events, "choice") if e["name"] == "pushed")
        rate = [e for e in of(events, "choice") if e["name"] == "learning_rate"][-1]
        assert "are disliked" in rate["why"]
        assert rate["value"] < 0.5 * (CREDITED if kept_too else 1.0) * 2e-4
    assert told["with"]["value"] == "by token" and "earlier ones" in told["with"]["why"]
    assert told["without"]["value"] == "even"


def test_a_version_that_spent_its_sense_takes_its_pushes_back_elsewhere_at_once(tmp_path, model):
    first, fresh = by_token(tmp_path, model)
    elsewhere = {}
    for name, share, weight in (("none", -0.3, 0.0), ("half", 0.5, 0.15)):
        spend(first, share)
        result, events = second(tmp_path / name, model, fresh, first, overrides={"band": "off"})
        told = {e["name"]: e["value"] for e in of(events, "choice")}
        assert told["pushed"] == "by token" and told["w_elsewhere"] == weight and result["retried"] is None
        made = json.loads((tmp_path / name / "v0002" / "manifest.json").read_bytes())
        assert made["preset"]["w_elsewhere"] == weight
        elsewhere[name] = result["metrics"]["elsewhere"]
    assert elsewhere["half"] < elsewhere["none"]


def test_stopped_it_goes_on_with_the_same_weight(tmp_path, model):
    first, fresh = by_token(tmp_path, model)
    spend(first, 0.5)
    spec = {"version": 2, "parent": 1, "adapters": {"1": str(first)}, "overrides": {"band": "off"}}
    whole, _ = go(tiny.run_folder(tmp_path / "whole" / "run", model, fresh, **spec, out=str(tmp_path / "whole" / "v")))
    folder = tiny.run_folder(tmp_path / "cut" / "run", model, fresh, **spec, out=str(tmp_path / "cut" / "v"))
    stop = Stop()
    with StopAfter(folder, stop, 2) as progress, pytest.raises(Stopped):
        loop.run(folder, progress, stop)
    result, events = go(folder)
    assert result["status"] == whole["status"] == "passed"
    assert of(events, "step")[0]["step"] == 3
    for name, tensor in tensors(tmp_path / "whole" / "v").items():
        np.testing.assert_array_equal(tensors(tmp_path / "cut" / "v")[name], tensor)


def by_token(tmp_path, model):
    """A first version, and rated replies of it that the next run takes token by token."""
    lines = ended(model, tiny.sample_lines(model, 40))
    assert go(tiny.run_folder(tmp_path / "one" / "run", model, lines))[0]["status"] == "passed"
    first = tmp_path / "one" / "out" / "v0001"
    return first, ended(model, tiny.sample_lines(model, 40, version=1, adapter=first, seed=5), first)


def spend(version, share):
    """As if it had gone live with this share of the base_nll that it may have."""
    manifest, bound = json.loads((version / "manifest.json").read_bytes()), tiny.LOOSE["base_nll_rise"]
    manifest["gate"]["base_nll"] = {"value": share * bound, "bound": bound}
    (version / "manifest.json").write_text(json.dumps(manifest))


def test_a_version_that_lost_its_optimiser_state_is_trained_on_all_the_same(tmp_path, model, first):
    shutil.copytree(first, tmp_path / "v0001")
    (tmp_path / "v0001" / "optimiser.safetensors").unlink()
    verify_adapter(tmp_path / "v0001")
    fresh = tiny.sample_lines(model, version=1, adapter=first, seed=5)
    result, events = second(tmp_path, model, fresh, tmp_path / "v0001")
    assert result["status"] == "passed", result["reason"]
    assert ["optimiser", "cold"] in [[e["name"], e["value"]] for e in of(events, "choice")]


def test_samples_of_an_older_version_train_and_of_a_much_older_one_are_not_even_tried(tmp_path, model, lines, first):
    late = tiny.sample_lines(model, version=0, seed=5)  # of the base, rated when version 1 was live
    result, events = second(tmp_path / "a", model, late, first)
    assert result["status"] == "passed", result["reason"]
    trained = sum(o["used"] for o in result["samples"].values())
    assert trained == result["metrics"]["late_trained"] <= result["metrics"]["late"] == 10
    assert trained >= 8 and 0 < result["metrics"]["rejected_stale"] < 0.7
    assert next(e for e in of(events, "choice") if e["name"] == "late")["value"] == 10
    strict, _ = second(tmp_path / "strict", model, late, first, overrides={"late_moment": 0.0})
    assert strict["metrics"]["rejected_stale"] > result["metrics"]["rejected_stale"]
    result, _ = second(tmp_path / "b", model, lines, first, overrides={"max_version_gap": 0})
    assert "10 version-gap" in result["reason"]


def test_inexact_samples_are_recomputed_under_their_version_and_labelled(tmp_path, model, first, monkeypatch):
    for bound, none in (("MISMATCH", ()), ("GARBAGE", 99.0)):  # the model would say nothing of the kind
        monkeypatch.setattr(reply_checks, bound, none)
    fresh = tiny.sample_lines(model, version=1, adapter=first, seed=5)
    inexact = [line | {"exact": False, "logprobs": None, "text": f"some text {i}"} for i, line in enumerate(fresh)]
    result, events = second(tmp_path / "a", model, inexact, first)
    assert result["status"] == "passed", result["reason"]
    assert result["metrics"]["recomputed"] == result["metrics"]["acceptance"] == 1  # x is 1 for the parent's own
    assert verify_adapter(tmp_path / "a" / "v0002")["recomputed"] == sorted(
        line["rating"] for line in fresh if line["split"] == "train"
    )
    assert any("came without log-probs" in e["message"] for e in of(events, "warning"))
    of_base = [line | {"version": 0} for line in inexact]  # recomputed under the base, so they are late
    result, _ = second(tmp_path / "b", model, of_base, first)
    assert result["metrics"]["recomputed"] == 1 and result["metrics"]["rejected_stale"] > 0
    unknown = [line | {"version": 7} for line in inexact]
    result, _ = second(tmp_path / "c", model, unknown, first)
    assert result["status"] == "empty"
    assert "unusable" in result["reason"]


def test_the_band_is_calibrated_on_unrated_completions(tmp_path, model, lines):
    noise = np.random.default_rng(0)

    def noisy(line):
        return line | {"logprobs": [min(0.0, x + noise.normal(0, 0.05)) for x in line["logprobs"]]}

    folder = tiny.run_folder(tmp_path / "run", model, [noisy(line) for line in lines])
    more = tiny.sample_lines(model, count=24, seed=9)
    unrated = [{k: v for k, v in noisy(line).items() if k not in ("reward", "weight")} for line in more]
    (folder / "calibration.jsonl").write_text("\n".join(map(json.dumps, unrated)))
    result, events = go(folder)
    assert result["metrics"]["calibration_sigma"] == pytest.approx(0.05, rel=0.3)
    assert result["metrics"]["acceptance_fresh"] > 0.9
    reasons = [e["why"] for e in of(events, "choice") if e["name"] == "band"]
    assert any("unrated completions" in why for why in reasons)


COMPARISON = {"mean": -0.02, "deviation": 0.03, "tokens": 93}


def few_words_of_a_quantised_server(model, tokens):
    """Short answers with noise of 0.03 nats a token."""
    noise = np.random.default_rng(4)
    lines = tiny.sample_lines(model, tokens=tokens)
    return [line | {"logprobs": [min(0.0, x + noise.normal(0.02, 0.03)) for x in line["logprobs"]]} for line in lines]


@pytest.mark.parametrize(("tokens", "comparison"), [(2, COMPARISON), (6, None)])
def test_short_answers_of_a_quantised_server_train(tmp_path, model, tokens, comparison):
    """Under 200 tokens the paper's band refused every one of them as `fresh-mismatch`."""
    lines = few_words_of_a_quantised_server(model, tokens)
    result, events = go(tiny.run_folder(tmp_path / "run", model, lines, comparison=comparison))
    causes = {outcome["cause"] for outcome in result["samples"].values()}
    assert causes == {None}, result["reason"]
    assert result["metrics"]["acceptance_fresh"] > 0.9
    band = [e for e in of(events, "choice") if e["name"] == "band"][-1]
    assert band["value"] == "calibrated" and ("comparison" in band["why"]) == bool(comparison)


def test_a_run_that_knows_too_little_of_the_noise_waits(tmp_path, model, monkeypatch):
    monkeypatch.setattr(TorchPolicy, "step", lambda *_: pytest.fail("an optimiser step was taken"))
    lines = few_words_of_a_quantised_server(model, 2)
    result, _ = go(tiny.run_folder(tmp_path / "run", model, lines))
    assert result["status"] == "empty" and result["samples"] == {}
    assert (
        result["reason"].startswith("The run waits for about 6 more rated answers")
        and "stay fresh" in (result["reason"])
    )
    assert result["metrics"]["missing_answers"] == 6


def test_a_server_without_noise_needs_no_calibration(tmp_path, model):
    result, _ = go(tiny.run_folder(tmp_path / "run", model, tiny.sample_lines(model, tokens=2)))
    assert {outcome["cause"] for outcome in result["samples"].values()} == {None}, result["reason"]


def test_the_losses_of_the_ratings_are_the_loss_of_the_first_step(tmp_path, model, lines):
    folder = tiny.run_folder(tmp_path / "run", model, lines, overrides={"batch": 64})
    result, events = go(folder)
    trained = [o["loss"] for o in result["samples"].values() if o["used"]]
    assert len({round(loss, 3) for loss in trained}) > 1
    assert np.mean(trained) == pytest.approx(of(events, "step")[0]["loss"], abs=1e-4)


def conversation(line, model, turns=3):
    """The line as the last turn of a longer conversation, as captured from the base model."""
    served = tiny.policy(model)
    template = loop.Template(served.tokenizer)
    older = [{"role": role, "content": f"{n} {role}"} for n in range(turns) for role in ("user", "assistant")]
    messages = [{"role": "system", "content": "Be kind."}, *older, *line["messages"]]
    tokens = packing.Tokens(template.prompt(messages), tuple(line["token_ids"]), 0.8)
    logprobs = served.log_probs(packing.pack([tokens])).sampled.tolist()
    return line | {"messages": messages, "prompt_token_ids": list(tokens.prompt), "logprobs": logprobs}


def test_samples_longer_than_max_seq_len_train_without_their_oldest_turns(tmp_path, model, lines):
    lines = tiny.sample_lines(model, count=32)
    long = [conversation(line, model) for line in lines]
    longest = max(len(x["prompt_token_ids"]) + len(x["token_ids"]) for x in long)
    folder = tiny.run_folder(tmp_path / "run", model, long, overrides={"max_seq_len": longest - 40})
    result, events = go(folder)
    assert result["status"] == "passed", result["reason"]
    trained = {rating: o for rating, o in result["samples"].items() if o["used"]}
    assert trained
    assert all("shortened" in o["flags"] for o in result["samples"].values())
    assert sorted(trained) == verify_adapter(tmp_path / "out" / "v0001")["recomputed"]
    assert any("without their oldest turns" in e["message"] for e in of(events, "warning"))
    # Of the tokens that the cut made twice or half as likely none trains.
    served, template = tiny.policy(model), loop.Template(tiny.tokenizer())
    cut, _ = loop.samples.load(folder / "samples.jsonl", template, max_seq_len=longest - 40)
    for sample in cut:
        if sample.rating in trained:
            x = served.log_probs(packing.pack([sample.tokens])).sampled - sample.captured
            expected = int((np.abs(x) <= np.log(2)).sum())
            assert abs(trained[sample.rating]["accepted"] - expected) <= 1  # rounding at the bound
    assert sum(o["accepted"] for o in trained.values()) < sum(o["tokens"] for o in trained.values())


def test_a_sample_of_which_no_turn_can_go_is_left_out_by_name(tmp_path, model, lines):
    lines = [*lines, lines[0] | {"rating": "rt-long", "prompt_token_ids": [5] * 400}]
    result, events = go(tiny.run_folder(tmp_path / "run", model, lines, overrides={"max_seq_len": 100}))
    assert result["status"] == "passed", result["reason"]
    assert result["samples"]["rt-long"]["cause"] == "too-long"
    assert any("rt-long cannot be used" in e["message"] for e in of(events, "warning"))


def with_reply(line, reply, **changes):
    return line | {"token_ids": reply, "logprobs": [-0.1] * len(reply)} | changes


FLAWED = {"empty": [2], "looping": [40, 41] * 12}


@pytest.mark.parametrize("flaw", FLAWED)
def test_a_flawed_reply_is_not_imitated_but_may_be_unlearned(tmp_path, model, lines, flaw):
    train = [line for line in lines if line["split"] == "train"]
    liked, disliked = (next(x for x in train if x["reward"] == sign) for sign in (1.0, -1.0))
    odd = {
        liked["rating"]: with_reply(liked, FLAWED[flaw], finish_reason="stop"),
        disliked["rating"]: with_reply(disliked, FLAWED[flaw], finish_reason="stop"),
    }
    changed = [odd.get(line["rating"], line) for line in lines]
    result, events = go(tiny.run_folder(tmp_path / "run", model, changed, overrides={"band": "off", "token_low": 1e-9}))
    assert result["status"] == "passed", result["reason"]
    good, bad = result["samples"][liked["rating"]], result["samples"][disliked["rating"]]
    assert (good["used"], good["cause"], good["accepted"], good["flags"]) == (False, flaw, 0, [flaw])
    assert (bad["used"], bad["cause"], bad["flags"]) == (True, None, [flaw])
    assert any("not imitated" in e["message"] for e in of(events, "warning"))
    assert liked["rating"] not in verify_adapter(tmp_path / "out" / "v0001")["samples"]


def test_a_truncated_reply_trains_as_it_was_rated(tmp_path, model, lines):
    seen = ({"human": True}, {"human": False, "followed": True})  # by a person, or by one who went on from it
    cut = [line | {"finish_reason": ("length", None)[i % 2]} | seen[i // 2 % 2] for i, line in enumerate(lines)]
    whole = [line | {"finish_reason": "stop"} for line in lines]
    result, _ = go(tiny.run_folder(tmp_path / "a" / "run", model, cut))
    other, _ = go(tiny.run_folder(tmp_path / "b" / "run", model, whole))
    assert {tuple(o["flags"]) for o in result["samples"].values()} == {("truncated",), ("broken-off",)}
    assert all("flags" not in o for o in other["samples"].values())
    one, same = tensors(tmp_path / "a" / "out" / "v0001"), tensors(tmp_path / "b" / "out" / "v0001")
    for name in one:
        np.testing.assert_array_equal(one[name], same[name])


def test_a_run_that_an_earlier_release_began_goes_on_without_replay(tmp_path, model, lines, first):
    """Killed at its second step with lines that were to train once more, and gone on with after the upgrade."""
    fresh = tiny.sample_lines(model, version=1, adapter=first, seed=5)
    earlier = [line for line in lines if line["split"] == "train"]
    spec = {"version": 2, "parent": 1, "adapters": {"1": str(first)}, "overrides": {"band": "off"}}
    folder = tiny.run_folder(tmp_path / "old" / "run", model, fresh + earlier, out=str(tmp_path / "old" / "v"), **spec)
    stop = Stop()
    with StopAfter(folder, stop, 2) as progress, pytest.raises(Stopped):
        loop.run(folder, progress, stop)
    assert (folder / "checkpoint").exists()
    again = [line | {"split": "replay"} for line in earlier]
    (folder / "samples.jsonl").write_text("".join(json.dumps(line) + "\n" for line in fresh + again))
    order = json.loads((folder / "run.json").read_bytes())
    order["overrides"]["replay_ratio"] = 0.5
    (folder / "run.json").write_text(json.dumps(order))

    result, events = go(folder)
    alone, _ = second(tmp_path / "new", model, fresh, first, overrides={"band": "off"})
    assert result["status"] == "passed", result["reason"]
    assert not result["samples"].keys() & {line["rating"] for line in earlier}
    assert result["samples"] == alone["samples"] and result["reason"] == alone["reason"]
    manifest, names = verify_adapter(tmp_path / "old" / "v"), ("samples", "recomputed", "baseline", "liked", "preset")
    expected = verify_adapter(tmp_path / "new" / "v0002")
    assert {name: manifest[name] for name in names} == {name: expected[name] for name in names}
    assert manifest["choices"] == {"replay_ratio": "left out"} and "replayed" not in manifest
    assert any("starting over" in event["message"] for event in of(events, "warning"))
    (choice,) = [event for event in of(events, "choice") if event["name"] == "replay_ratio"]
    assert "removed by an upgrade" in choice["why"]
    for name, tensor in tensors(tmp_path / "new" / "v0002").items():
        np.testing.assert_array_equal(tensors(tmp_path / "old" / "v")[name], tensor)


def test_a_reply_of_a_version_whose_folder_is_gone_does_not_fail_the_others(tmp_path, model, lines):
    late = lines[0] | {"rating": "rt-late", "version": 1, "exact": False, "logprobs": None, "text": "so"}
    missing = {"1": str(tmp_path / "deleted" / "v0001")}
    folder = tiny.run_folder(tmp_path / "run", model, [*lines, late], version=2, parent=0, adapters=missing)
    result, _ = go(folder)
    assert result["status"] == "passed", result["reason"]
    outcome = result["samples"]["rt-late"]
    assert (outcome["used"], outcome["cause"]) == (False, "unusable")
    assert outcome["reason"] == "not exact, and the folder of version 1 is gone"
