"""A whole run on constrained answers: tokens that the policy chose train exactly, those that were forced do not."""

import asyncio
import json
import random
from dataclasses import replace

import numpy as np
import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from tests.harness import tiny
from tests.trainer.runs import go, of
from trainer.lessons.chat_template import Template
from trainer.lessons.line_members import BadLine
from trainer.lessons.samples import forced_tokens, parse
from trainer.policy.packing import pack
from trainer.serve.constraints import Compiler, SchemaPart
from trainer.serve.engine import Engine, GenerationRequest
from trainer.serve.sampling import Sampling

WORD = {
    "type": "object",
    "properties": {"word": {"type": "string", "maxLength": 10}},
    "required": ["word"],
    "additionalProperties": False,
}
LETTERS = "abcdefgh"
COUNT = 24


@pytest.fixture(scope="module")
def letters(tmp_path_factory):
    """A tiny model that has only seen letters: it would never say JSON, and inside a string it says what it likes."""
    folder = tiny.make_model(tmp_path_factory.mktemp("models") / "letters")
    model, template = AutoModelForCausalLM.from_pretrained(folder), Template(tiny.tokenizer())
    rng, optimizer = random.Random(0), torch.optim.Adam(model.parameters(), lr=3e-3)
    for _ in range(150):
        rows = []
        for _ in range(8):
            prompt = template.prompt([{"role": "user", "content": f"q{rng.randrange(99):02}"}])
            rows.append([*prompt, *template.reply("".join(rng.choices(LETTERS, k=30)), ended=False)])
        ids = torch.tensor(rows)
        model(input_ids=ids, labels=ids).loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    model.save_pretrained(folder)
    return folder


def answers(folder, sampling):
    """Deltas of one constrained reply to each prompt, as the server generates them."""
    tokenizer = AutoTokenizer.from_pretrained(folder)
    template = Template(tokenizer)
    engine = Engine(AutoModelForCausalLM.from_pretrained(folder), tokenizer)
    constraint = Compiler(tokenizer, engine.vocabulary, sorted(engine.ends)).compile([[SchemaPart(WORD)]])

    async def reply(n):
        prompt = template.prompt([{"role": "user", "content": f"q{n:02}"}])
        ask = GenerationRequest(prompt, 60, replace(sampling, seed=n), constraint=constraint)
        return prompt, [delta async for _, delta in engine.generate(ask)]

    async def all_replies():
        return await asyncio.gather(*map(reply, range(COUNT)))

    try:
        return asyncio.run(all_replies())
    finally:
        engine.close()


def lines(replies, sampling):
    made = []
    for n, (prompt, deltas) in enumerate(replies):
        text = "".join(delta.text for delta in deltas)
        word = json.loads(text)["word"]
        made.append(
            {
                "rating": f"rt-{n}", "completion": f"rl-{n}", "split": "held" if n % 6 == 5 else "train", "version": 0,
                "reward": 1.0 if word.count("a") + word.count("b") > 2 else -1.0, "weight": 1.0, "human": True,
                "finish_reason": deltas[-1].finish, "exact": True, "text": text,
                "sampling": {"temperature": sampling.temperature, "top_p": sampling.top_p},
                "prompt_token_ids": list(prompt), "token_ids": [delta.token for delta in deltas],
                "logprobs": [delta.logprob for delta in deltas],
                "unconstrained_logprobs": [delta.unconstrained for delta in deltas],
                "messages": [{"role": "user", "content": f"q{n:02}"}],
            }
        )  # fmt: skip
    return made


def forced(line):
    return forced_tokens(np.asarray(line["logprobs"]), np.asarray(line["unconstrained_logprobs"]))


def test_a_token_is_forced_by_the_mass_that_was_ruled_out_or_by_being_the_only_one():
    sampled, model = np.array([-1.0, -1.0, 0.0, 0.0, -1.0, 0.0]), np.array([-1.1, -1.3, -0.1, 0.0, -9999.0, -7.0])
    assert forced_tokens(sampled, model).tolist() == [False, True, True, False, True, True]


@pytest.fixture(scope="module", params=[Sampling(temperature=0.8), Sampling(temperature=0.9, top_p=0.95)])
def captured(request, letters):
    return lines(answers(letters, request.param), request.param)


def test_the_trainer_computes_what_the_server_said_without_the_constraint(captured, letters):
    template, policy = Template(tiny.tokenizer()), tiny.policy(letters)
    samples = [parse(line, line["rating"], template, max_seq_len=512) for line in captured]
    scored = np.split(
        policy.log_probs(pack([s.tokens for s in samples])).sampled, np.cumsum([len(s.chosen) for s in samples])[:-1]
    )
    free = sum(int(s.chosen.sum()) for s in samples)
    assert 0.25 < free / sum(len(s.chosen) for s in samples) < 0.75, "both kinds are there"
    for sample, old, line in zip(samples, scored, captured, strict=True):
        assert (sample.chosen == ~forced(line)).all()
        np.testing.assert_allclose(old[sample.chosen], sample.behaviour[sample.chosen], atol=2e-3)
        assert np.isnan(sample.behaviour[~sample.chosen]).all()
        assert set(template.text(np.asarray(line["token_ids"])[sample.chosen].tolist())) <= set(LETTERS)


def test_a_run_trains_on_them_and_passes_its_gate(captured, letters, tmp_path):
    result, events = go(tiny.run_folder(tmp_path / "run", letters, captured))
    assert result["status"] == "passed", result["reason"]
    assert result["metrics"]["acceptance_fresh"] == 1
    for line in captured:
        if line["split"] == "held":
            continue
        outcome = result["samples"][line["rating"]]
        assert outcome["cause"] is None and outcome["exact"]
        assert outcome["tokens"] == outcome["accepted"] == int((~forced(line)).sum())
    assert not [event for event in of(events, "warning") if "the server does not compute" in event["message"]]


def test_without_the_second_log_probs_each_is_refused(captured, letters, tmp_path):
    """Why they are captured: forced tokens look like another model's."""
    bare = [{k: v for k, v in line.items() if k != "unconstrained_logprobs"} for line in captured]
    result, _ = go(tiny.run_folder(tmp_path / "run", letters, bare))
    assert result["status"] != "passed"
    causes = {sample["cause"] for sample in result["samples"].values()}
    assert causes & {"fresh-mismatch", "garbage"}, causes


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"unconstrained_logprobs": [-1.0]}, "without the constraint others"),
        ({"exact": False}, "not known one for one"),
        ({"unconstrained_logprobs": "all forced"}, "chose each of its tokens"),
    ],
)
def test_a_line_that_does_not_say_what_was_chosen_is_unusable(captured, change, reason):
    line = captured[0]
    if change.get("unconstrained_logprobs") == "all forced":
        change = {"unconstrained_logprobs": [logprob - 1 for logprob in line["logprobs"]]}
    with pytest.raises(BadLine, match=reason):
        parse(line | change, "rt", Template(tiny.tokenizer()), max_seq_len=512)


def test_where_penalties_make_it_inexact_forced_tokens_still_do_not_train(captured, letters, tmp_path):
    penalised = [line | {"sampling": {**line["sampling"], "presence_penalty": 0.5}} for line in captured]
    result, _ = go(tiny.run_folder(tmp_path / "run", letters, penalised))
    outcome, line = result["samples"]["rt-0"], captured[0]
    free = int((~forced(line)).sum())
    assert (outcome["exact"], outcome["tokens"], outcome["accepted"]) == (False, free, free)
