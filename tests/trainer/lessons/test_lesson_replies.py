"""Replies to prompts with lessons teach the same prompts without: on a tiny model."""

import pytest

from tests.harness import tiny
from tests.trainer.lessons.test_teacher import load, prepare
from trainer.lessons import teacher
from trainer.lessons.chat_template import Template
from trainer.lessons.prompts import teacher_comment, with_hint, without_lessons

WORDS = "use bullets"


@pytest.fixture
def policy(model):
    return tiny.policy(model)


def told(policy, line, comment=None, **changes):
    """The line as it is where its prompt had a lesson."""
    messages = with_hint(line["messages"], WORDS)
    prompt = list(Template(policy.tokenizer).prompt(messages))
    lessons = {"lessons": [WORDS], "lesson_ratings": ["rt-lesson"]}
    return line | {"messages": messages, "prompt_token_ids": prompt, "comment": comment} | lessons | changes


@pytest.mark.parametrize("content", ["one", [{"type": "text", "text": "one"}]])
def test_without_lessons_the_messages_are_as_their_client_sent_them(content):
    messages = [{"role": "user", "content": content}, {"role": "assistant", "content": "two"}]
    with_it = with_hint(messages, "a\nb")
    assert with_it != messages and without_lessons(with_it, ["a", "b"]) == messages
    assert without_lessons(with_it, ["b"]) is None and without_lessons(messages, ["a"]) is None
    assert without_lessons(with_it, []) is None


def test_lessons_before_a_later_system_text_are_taken_out():
    content = with_hint([{"role": "user", "content": "one"}], WORDS)[0]["content"]
    without = without_lessons([{"role": "user", "content": f"{content}\n\nbe kind"}], [WORDS])
    assert without == [{"role": "user", "content": "one\n\nbe kind"}]
    assert without_lessons([{"role": "user", "content": f"{content}, please"}], [WORDS]) is None


@pytest.mark.parametrize("text", ["one", ""])
def test_lessons_in_the_one_text_before_pictures_are_taken_out(text):
    picture = {"type": "image_url", "image_url": {"url": "data:image/png;base64,iVBORw0KGgo="}}
    messages = [{"role": "user", "content": [{"type": "text", "text": text}, picture] if text else [picture]}]
    with_it = with_hint(messages, WORDS, is_in_text=True)
    assert with_it[0]["content"][-1] == picture and without_lessons(with_it, [WORDS]) == messages
    assert without_lessons(messages, [WORDS]) is None


def test_a_comment_that_was_in_its_prompt_is_not_said_twice():
    line = {"comment": WORDS, "reward": -1.0}
    assert teacher_comment(line) is not None
    assert teacher_comment(line | {"lessons": [WORDS]}) is None
    assert teacher_comment(line | {"lessons": ["shorter"]}) is not None


def test_a_liked_reply_to_a_prompt_with_a_lesson_is_taught_without_it(tmp_path, model, lines, policy):
    mine = [told(policy, lines[0], reward=1.0), told(policy, lines[1], reward=-1.0)]
    template, loaded = load(tiny.run_folder(tmp_path / "run", model, mine), policy)
    assert teacher.count(loaded) == (0, 0, 1)
    targets, warnings = prepare(tmp_path, policy, loaded, template, hinted_replies=16)
    (reply,) = targets.imitations
    assert reply.sample.rating == lines[0]["rating"] and reply.tokens.reply == loaded[0].tokens.reply
    assert list(reply.tokens.prompt) == lines[0]["prompt_token_ids"] and reply.advantage == 0
    assert reply.teacher.ids.shape[0] == len(reply.tokens.reply)
    assert not targets.hinted and warnings == []


def test_the_same_comment_once_more_teaches_the_prompt_without_its_lesson(tmp_path, model, lines, policy):
    mine = [told(policy, lines[0], comment=WORDS, reward=-1.0), lines[2] | {"comment": WORDS, "reward": -1.0}]
    template, loaded = load(tiny.run_folder(tmp_path / "run", model, mine), policy)
    targets, _ = prepare(tmp_path, policy, loaded, template, hinted_replies=1)
    assert list(targets.hinted) == [lines[2]["rating"]]
    prompts = {tuple(reply.tokens.prompt) for reply in targets.imitations if reply.sample.lessons}
    assert prompts == {tuple(lines[0]["prompt_token_ids"])}


def test_the_server_renders_the_prompt_without_lessons(tmp_path, model, lines, policy):
    line = told(policy, lines[0], reward=1.0, bare={"text": None, "ids": [1, 50, 51]})
    template, loaded = load(tiny.run_folder(tmp_path / "run", model, [line]), policy)
    targets, _ = prepare(tmp_path, policy, loaded, template, hinted_replies=16)
    assert targets.imitations[0].tokens.prompt == (1, 50, 51)


def test_lessons_that_are_not_where_they_were_put_leave_the_rating(tmp_path, model, lines, policy):
    line = told(policy, lines[0], reward=1.0) | {"lessons": ["other words"]}
    template, loaded = load(tiny.run_folder(tmp_path / "run", model, [line]), policy)
    targets, (warning,) = prepare(tmp_path, policy, loaded, template, hinted_replies=16)
    assert not targets.imitations and "its lessons are not where they were put" in warning
