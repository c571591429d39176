"""Runs on answers about pictures: what trains, what is left out with its reason, and what never changes."""

import json

import numpy as np
import pytest
from safetensors import safe_open
from safetensors.torch import load_file

from scripts.harness.pictures import picture
from tests.harness import seeing, tiny
from tests.trainer.runs import go, of
from trainer.io.encrypted_files import Seal
from trainer.policy.senses import is_sense


@pytest.fixture(scope="module", params=["idefics3", "gemma3"])
def model(request, tmp_path_factory):
    return seeing.make(request.param, tmp_path_factory.mktemp("models") / request.param)


@pytest.fixture(scope="module")
def idefics(tmp_path_factory):
    return seeing.make("idefics3", tmp_path_factory.mktemp("models") / "idefics3")


def choice(events, name):
    return next(event for event in of(events, "choice") if event["name"] == name)


def run_of(folder, model, lines, *pictures):
    made = tiny.run_folder(folder / "run", model, lines, overrides={"learning_rate": 2e-3, "drift_bound": 10.0})
    seeing.write_pictures(made, *(pictures or seeing.pictures_of_lines()))
    return made


def test_answers_about_pictures_train_and_no_part_that_sees_does(tmp_path, model):
    before = (model / "model.safetensors").read_bytes()
    result, events = go(run_of(tmp_path, model, seeing.lines(model)))
    assert result["status"] == "passed", result["reason"]
    assert choice(events, "pictures")["value"] == 3
    assert choice(events, "samples_with_pictures") | {"at": 0} == {
        "event": "choice", "name": "samples_with_pictures", "value": 8, "why": "all that came", "at": 0,
    }  # fmt: skip
    assert {outcome["cause"] for outcome in result["samples"].values()} == {None}
    # ℓ_old is what the model itself, by transformers from pixels, gave each token.
    assert abs(result["metrics"]["acceptance"] - 1.0) < 1e-6
    with safe_open(tmp_path / "out" / "v0001" / "adapter_model.safetensors", "np") as file:
        assert file.keys() and not [name for name in file.keys() if is_sense(name)]  # noqa: SIM118  no dict
    assert (model / "model.safetensors").read_bytes() == before


def test_log_probs_are_the_models_own(tmp_path, model):
    """The trainer's rows, trees and padding against transformers' forward pass from pixels."""
    folder = run_of(tmp_path, model, lines := seeing.lines(model))
    go(folder)
    policy = tiny.policy(model)
    from trainer.lessons.chat_template import Template
    from trainer.lessons.samples import load
    from trainer.pictures import files
    from trainer.pictures.album import Album
    from trainer.pictures.processor import PictureProcessor
    from trainer.policy import packing

    album = Album(files.read(folder, Seal(None)), PictureProcessor(model), first_id=policy.words)
    assert album.numbered == [] and len(album) == 3
    album.number_all()
    assert policy.see(album) is None
    samples, unusable = load(folder / "samples.jsonl", Template(policy.tokenizer, album=album), max_seq_len=4096)
    assert not unusable
    packed = packing.pack([sample.tokens for sample in samples])
    gap = np.abs(policy.log_probs(packed).plain - np.concatenate([line["logprobs"] for line in lines]))
    assert gap.max() < 2e-4
    # Two pictures have the same ids at the server, and prompts about them are different ones here.
    assert lines[0]["prompt_token_ids"][:12] == lines[1]["prompt_token_ids"][:12]
    assert samples[0].tokens.prompt[:12] != samples[1].tokens.prompt[:12]


def test_a_sample_whose_pictures_the_server_read_otherwise_is_left_out_with_the_reason(tmp_path, idefics):
    lines = seeing.lines(idefics)
    piece = idefics_piece(lines[0])
    shortened = list(lines[0]["prompt_token_ids"])
    shortened.remove(piece)
    lines[0]["prompt_token_ids"] = shortened
    lines[1]["prompt_token_ids"] = [piece, *lines[1]["prompt_token_ids"]]
    lines[2]["messages"] = seeing.question(picture(color=(9, 9, 9), size=seeing.SIZE))  # did not come along
    lines[3]["messages"][0]["content"][0]["refused"] = "it is not base64"
    result, events = go(run_of(tmp_path, idefics, lines))
    assert all(result["samples"][f"rt-{n}"]["cause"] == "unusable" for n in range(4))
    told = choice(events, "samples_with_pictures")
    assert told["value"] == 4
    for part in (
        "1 left out: the server read other tokens for picture 1 of 1 than the 7 that the weights' processor makes",
        "1 left out: the server read more tokens of pictures than 1 of them have",
        "1 left out: a picture of it did not come with the run",
        "1 left out: a picture of it was refused: it is not base64",
    ):
        assert part in told["why"]


def idefics_piece(line):
    """The token that most of a picture's are."""
    ids = line["prompt_token_ids"]
    return max(set(ids), key=ids.count)


def test_without_exact_ids_the_count_decides(tmp_path, idefics):
    """As llama.cpp's server tells it: its text with a marker for each picture, and how many tokens it read."""
    lines = seeing.lines(idefics)
    for line in lines:
        count = len(line["prompt_token_ids"])
        text = f"<|im_start|>user\n<__media__>{line['messages'][0]['content'][1]['text']}<|im_end|>\n"
        served = {"text": f"{text}<|im_start|>assistant\n", "ids": None, "picture_marker": "<__media__>"}
        line |= {"exact": False, "prompt_token_ids": None, "token_ids": None, "logprobs": None,
                 "prompt_tokens": count, "as_sent": True, "served": served, "text": "some answer"}  # fmt: skip
    lines[0]["prompt_tokens"] += 1
    del lines[1]["served"]
    lines[2]["prompt_tokens"] = None
    result, events = go(run_of(tmp_path, idefics, lines))
    told = choice(events, "samples_with_pictures")
    assert told["value"] == 6, told["why"]
    assert "its server told neither the tokens of its pictures nor how many it read" in told["why"]
    assert "tokens where the weights' processor makes" in told["why"]
    assert result["samples"]["rt-1"]["cause"] != "unusable", "by the weights' template, of the same length"


def test_a_model_that_reads_text_alone_leaves_them_out(tmp_path):
    model = tiny.make_model(tmp_path / "model")
    lines = tiny.sample_lines(model)
    data = seeing.pictures_of_lines()[0]
    lines[0]["messages"] = seeing.question(data)
    folder = tiny.run_folder(tmp_path / "run", model, lines)
    seeing.write_pictures(folder, data)
    result, events = go(folder)
    assert result["status"] == "passed", result["reason"]
    assert choice(events, "pictures")["value"] == 0
    assert choice(events, "samples_with_pictures")["value"] == 0
    assert "no processor that reads pictures" in choice(events, "samples_with_pictures")["why"]


def test_a_picture_that_was_changed_ends_the_run(tmp_path, idefics):
    folder = run_of(tmp_path, idefics, seeing.lines(idefics, 4))
    rows = [json.loads(row) for row in (folder / "pictures.jsonl").read_text().splitlines()]
    rows[0]["data"] = rows[1]["data"]
    (folder / "pictures.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    result, _ = go(folder)
    assert result["status"] == "failed" and "another picture than its hash says" in result["reason"]


def test_the_outcome_of_an_episode_trains_the_turns_of_an_agent_that_saw_screens(tmp_path, model):
    """Each turn has the screens before it once more: they are the same pieces, read once."""
    screens = [picture(color=(40 * n, 90, 200 - 40 * n), size=seeing.SIZE) for n in range(3)]
    lines = [turn for n in range(4) for turn in seeing.episode(model, n, screens, 1.0 if n % 2 else -1.0)]
    result, events = go(run_of(tmp_path, model, lines, *screens))
    assert result["status"] == "passed", result["reason"]
    assert choice(events, "pictures")["value"] == 3
    assert choice(events, "samples_with_pictures")["value"] == 12
    outcomes = result["samples"]
    assert {outcome["cause"] for outcome in outcomes.values()} == {None}
    for rating, outcome in outcomes.items():  # the group's mean is 0, so the outcome is the advantage
        good = int(rating.split("-")[1]) % 2 == 1
        assert outcome["used"] and (outcome["advantage"] > 0) == good
    with safe_open(tmp_path / "out" / "v0001" / "adapter_model.safetensors", "np") as file:
        assert not [name for name in file.keys() if is_sense(name)]  # noqa: SIM118  no dict


def test_tiles_of_a_large_picture(tmp_path):
    model = seeing.make("idefics3", tmp_path / "model", splits=True)
    data = picture(size=(96, 64))
    lines = [seeing.line(model, n, (data,), 1.0 if n % 2 else -1.0) for n in range(6)]
    result, events = go(run_of(tmp_path, model, lines, data))
    assert result["status"] == "passed", result["reason"]
    assert choice(events, "samples_with_pictures")["value"] == 6


def test_weights_of_a_part_that_sees_stay_to_the_last_byte(tmp_path, idefics):
    """What the trainer loads for a run has every value of the vision part as the file has it, after the last step."""
    policy = tiny.policy(idefics)
    stored = load_file(idefics / "model.safetensors")
    names = [name for name, parameter in policy.model.named_parameters() if is_sense(name)]
    assert names and not [name for name in names if policy.model.get_parameter(name).requires_grad]
    for name in names:
        file_name = name.removeprefix("base_model.model.").replace(".base_layer", "")
        assert (policy.model.get_parameter(name) == stored[file_name]).all()
