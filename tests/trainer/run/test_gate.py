"""The gate lets good candidates through and stops broken ones, on numbers that are the same every time."""

import contextlib
import dataclasses
import json
from functools import partial

import numpy as np
import pytest

from config.languages import every, gate_questions
from tests.harness import tiny
from trainer.io.progress import Stop
from trainer.io.run_folder import RunError
from trainer.lessons.chat_template import Template
from trainer.lessons.lessons import HeldBackReply
from trainer.lessons.samples import Sample
from trainer.mis_po import Terms, loss
from trainer.policy import packing
from trainer.run import gate
from trainer.run.base_surprise import BaseSurprise, standard_error
from trainer.run.gate import Bounds, is_looping
from trainer.run.replay_margin import ReplayMargin

WIDE = Bounds(base_nll_rise=0.3, text_nll_rise=0.05, max_looping=8)


@pytest.fixture(scope="module")
def policy(tmp_path_factory):
    return tiny.policy(tiny.make_model(tmp_path_factory.mktemp("models") / "tiny"))


@pytest.fixture
def template(policy):
    return Template(policy.tokenizer)


@pytest.fixture
def broken(policy):
    """Wears adapters of growing size, and takes them off again."""
    before = policy.adapter()

    def wear(size, seed=0):
        noise = np.random.default_rng(seed)
        policy.wear({n: (t + noise.normal(0, size, t.shape)).astype(np.float32) for n, t in before.items()})

    yield wear
    policy.wear(before)


def one(reward, reply, policy):
    tokens = packing.Tokens((1, 50), tuple(reply))
    old = policy.log_probs(packing.pack([tokens])).plain
    sample = Sample("rt", True, 0, reward, 1.0, True, tokens, old)
    return HeldBackReply(sample, old), tiny.lesson(sample, old)


def of_parent(policy, template):
    with policy.wearing(None):
        return gate.answer_questions(policy, template)


def test_replies_of_two_seeds_are_asked_for_at_once_and_are_what_each_alone_would_be(policy, template, broken):
    broken(0.1)
    seeds = [gate.GATE_SEED] * 8 + [gate.GATE_SEED + 1] * 16
    alone = gate.answer_questions(policy, template) + gate.answer_questions(
        policy, template, gate.NEUTRAL * 2, gate.GATE_SEED + 1
    )
    assert gate.answer_questions(policy, template, gate.NEUTRAL * 3, seeds) == alone
    assert alone[:8] != alone[8:16]


def judge(policy, template, held=(), lessons=(), changed=1.0, replayed=0.1, bounds=WIDE):
    return gate.judge(
        policy,
        template,
        bounds,
        parent=None,
        parent_answers=gate.SideAnswers(of_parent(policy, template)),
        lessons=lessons,
        held_back=held,
        changed=changed,
        replay_margin=ReplayMargin(replayed),
        stop=Stop(),
    ).checks


def test_a_candidate_like_its_parent_passes_and_twice_alike(policy, template, broken):
    broken(1e-3)
    checks = judge(policy, template)
    assert all(check.ok for check in checks.values()), checks
    assert checks == judge(policy, template)
    assert abs(checks["base_nll"].value) < 0.01
    assert abs(checks["text_nll"].value) < 0.001
    assert checks["length"].value == pytest.approx(1, abs=0.3)


def test_a_wrecked_candidate_does_not(policy, template, broken):
    broken(2.0)
    checks = judge(policy, template)
    assert not checks["text_nll"].ok
    lost = {"text_nll_rise": 99.0, "max_length_ratio": 99.0, "repetition_rise": 1.0, "topic_fall": 99.0}
    checks = judge(policy, template, bounds=dataclasses.replace(WIDE, **lost))
    assert not checks["base_nll"].ok
    assert checks["base_nll"].value > 1


def test_after_a_no_nothing_more_is_asked(policy, template, broken, monkeypatch):
    broken(2.0)
    asked, generate = [], policy.generate
    parent = gate.SideAnswers(of_parent(policy, template))
    monkeypatch.setattr(policy, "generate", lambda prompts, **rest: asked.append(prompts) or generate(prompts, **rest))
    found = gate.judge(
        policy, template, WIDE, parent=None, parent_answers=parent, lessons=(), held_back=(), changed=1.0,
        replay_margin=ReplayMargin(0.1), stop=Stop(),
    )  # fmt: skip
    assert not found.checks["text_nll"].ok and list(found.checks)[-1] == "text_nll"
    assert not asked and found.answers == gate.SideAnswers()


def test_an_adapter_that_changes_nothing_is_a_no_op(policy, template):
    checks = judge(policy, template, changed=0.0)
    assert list(checks) == ["finite", "no_op"] and not checks["no_op"].ok
    checks = judge(policy, template)
    assert checks["base_nll"].value == pytest.approx(0, abs=1e-6)
    assert checks["text_nll"].value == pytest.approx(0, abs=1e-6)


def test_sense_is_asked_of_three_replies_to_each_question_all_drawn_in_one_batch(policy, template, broken, monkeypatch):
    """One mad reply in ten is in none of eight in 43 of 100 draws."""
    broken(1e-3)
    asked, generate = [], policy.generate
    monkeypatch.setattr(policy, "generate", lambda prompts, **rest: asked.append(prompts) or generate(prompts, **rest))
    parent = gate.SideAnswers(of_parent(policy, template))
    asked.clear()
    found = gate.judge(
        policy, template, WIDE, parent=None, parent_answers=parent, lessons=(), held_back=(), changed=1.0,
        replay_margin=ReplayMargin(0.1), stop=Stop(),
    )  # fmt: skip
    assert found.checks["base_nll"].note.startswith("of 24 replies")
    assert [len(prompts) for prompts in asked] == [24]
    assert len({reply.reply for reply in (*found.answers.questions, *found.answers.further)}) > 8


def test_rated_prompts_are_answered_beside_the_questions_unless_they_are_long(policy, template, monkeypatch):
    asked, generate = [], policy.generate
    monkeypatch.setattr(policy, "generate", lambda prompts, **rest: asked.append(prompts) or generate(prompts, **rest))
    rated = [template.question("What is bread?"), template.question("Why?")]
    both = gate.answer_all(policy, template, gate.NEUTRAL, rated)
    assert len(asked) == 1 and len(both.rated) == 2
    assert list(both.questions) == gate.answer_questions(policy, template)
    alone = generate(rated, max_tokens=gate.RATED_TOKENS, temperature=gate.TEMPERATURE, seed=gate.RATED_SEED)
    assert [list(reply) for reply in both.rated] == alone
    apart = gate.answer_all(policy, template, gate.NEUTRAL, [tuple(range(3, 900))])
    assert apart == gate.SideAnswers(both.questions)


def test_what_is_not_finite_goes_no_further(policy, template, broken):
    broken(np.nan)
    checks = judge(policy, template)
    assert not checks["finite"].ok
    assert set(checks) == {"finite", "no_op"}
    assert checks["finite"].json()["value"] > 0


def test_the_margin_needs_both_signs(policy, template):
    held, _ = one(1.0, [60, 61, 2], policy)
    check = gate.margin(policy, [held], WIDE)
    assert check.ok
    assert check.value is None
    assert "disliked" in check.note
    assert check.json()["value"] is None


def test_the_margin_is_liked_minus_disliked_and_its_bound_knows_chance(policy, template):
    liked, _ = one(1.0, [60, 61, 62, 63, 64, 2], policy)
    disliked, _ = one(-1.0, [70, 71, 72, 73, 74, 2], policy)
    worse = [dataclasses.replace(liked, old=liked.old + 0.5), disliked]
    check = gate.margin(policy, worse, Bounds())
    assert check.value == pytest.approx(-0.5, abs=1e-5)
    assert not check.ok
    noisy = [dataclasses.replace(liked, old=liked.old + np.array([3, -3, 3, -3, 3, 0])), disliked]
    check = gate.margin(policy, noisy, Bounds())
    assert check.value == pytest.approx(-0.5, abs=1e-5)
    assert check.bound < -2
    assert check.ok


def test_length_may_fall_by_what_the_ratings_asked_for(policy):
    long, short = packing.Tokens((1,), tuple(range(3, 43))), packing.Tokens((1,), tuple(range(3, 13)))
    _, liked = one(1.0, [60] * 5, policy)
    _, disliked = one(-1.0, [60] * 35, policy)
    assert not gate.length([short], [long], [], Bounds()).ok
    check = gate.length([short], [long], [liked, disliked], Bounds())
    assert check.bound == pytest.approx(0.5 * 5 / 20)
    assert check.ok


def test_length_may_grow_by_what_the_ratings_asked_for(policy):
    long, short = packing.Tokens((1,), tuple(range(3, 43))), packing.Tokens((1,), tuple(range(3, 13)))
    _, liked = one(1.0, [60] * 35, policy)
    _, disliked = one(-1.0, [60] * 5, policy)
    assert not gate.length([long], [short], [], Bounds()).ok
    check = gate.length([long], [short], [liked, disliked], Bounds(max_length_ratio=2.5))
    assert check.bound == pytest.approx(2.5 * 35 / 20)
    assert check.ok


def test_steps_the_wrong_way_show_on_the_replies_themselves():
    assert gate.replay(ReplayMargin(0.1)).ok
    assert not gate.replay(ReplayMargin(-0.001)).ok
    assert gate.replay(ReplayMargin(-0.013, 0.01)).ok and not gate.replay(ReplayMargin(-0.03, 0.01)).ok
    one_sign = gate.replay(None)
    assert one_sign.ok and one_sign.value is None and one_sign.note


def test_a_collapsed_candidate_has_no_entropy_left(policy, template):
    """One reply, imitated until nothing else is left to say."""
    before, state = policy.adapter(), policy.optimiser()
    one_reply = packing.pack([packing.Tokens(template.prompt([{"role": "user", "content": "a"}]), (60, 61, 62, 63, 2))])
    terms = Terms(*(np.full(5, value) for value in (-1.0, -1.0, 1.0, 1.0, 0.2)))
    for _ in range(60):
        policy.backward(one_reply, terms, partial(loss, kl_ref=0.0, guard_low=1e-9, guard_high=1e9))
        policy.step(0.02, 1.0)
    reply = packing.Tokens(template.prompt([{"role": "user", "content": "b"}]), (60, 61, 62, 63, 2))
    check = gate.compare_with_base(BaseSurprise.measure(policy, [reply]), [], WIDE)["entropy"]
    policy.wear(before)
    policy.restore(state)
    assert not check.ok
    assert check.value < 0.4


def test_repetition_is_counted_against_the_parent():
    loop, prose = packing.Tokens((1,), tuple([5, 6, 7, 8] * 8)), packing.Tokens((1,), tuple(range(3, 35)))
    assert gate.repetition([prose], [prose], Bounds()).value == 0
    assert not gate.repetition([loop, prose], [prose, prose], Bounds()).ok
    assert gate.repetition([loop], [loop], Bounds()).ok
    assert gate.repeated_share([1, 2]) == 0


@pytest.mark.parametrize(
    ("text", "refusal"),
    [
        ("I'm sorry, but I can't help with that.", True),
        ("I cannot answer.", True),
        ("As an AI language model, I", True),
        ("Sorry is a word of apology.", True),  # too eager is no harm: the parent is counted alike
        ("I can tell you about bread.", False),
        ("Canned soup is fine.", False),
    ],
)
def test_refusals_are_counted_against_the_parent(template, text, refusal):
    said = packing.Tokens((1,), template.reply(text, ended=True))
    fine = packing.Tokens((1,), template.reply("Bread is old.", ended=True))
    assert gate.refusals([said] * 2, [fine] * 2, template, Bounds()).ok is not refusal
    assert gate.refusals([said] * 2, [said] * 2, template, Bounds()).ok


def test_a_taste_that_surprises_the_base_is_allowed_what_it_asks_for_and_no_more_than_twice(policy):
    replies = [packing.Tokens((1, 50), (60, 61, 2))]
    _, rated = one(-1.0, [60, 61, 2], policy)

    def asking(nats):
        return dataclasses.replace(rated, ref=rated.ref - nats, is_imitated=True)

    def base_nll(lessons, asked=0.0):
        return gate.compare_with_base(BaseSurprise.measure(policy, replies), lessons, Bounds(), asked)["base_nll"]

    for lessons, bound in (([rated], 0.3), ([rated, asking(0.2)], 0.5), ([rated, asking(9)], 0.6)):
        assert base_nll(lessons).bound == pytest.approx(bound, abs=1e-6)
    assert base_nll([rated, asking(-1)]).bound == 0.3
    assert base_nll([asking(1)]).bound == 0.3  # nothing to compare with
    assert base_nll([rated], asked=0.1).bound == pytest.approx(0.4)


def test_a_correction_says_how_long_replies_should_be(policy):
    long, short = packing.Tokens((1,), tuple(range(3, 43))), packing.Tokens((1,), tuple(range(3, 13)))
    _, disliked = one(-1.0, [60] * 40, policy)
    _, better = one(-1.0, [60] * 10, policy)
    better = dataclasses.replace(better, is_imitated=True)
    assert not gate.length([short], [long], [disliked], Bounds()).ok
    assert gate.length([short], [long], [disliked, better], Bounds()).bound == pytest.approx(0.5 * 10 / 40)


def test_looping_and_empty_replies_are_counted(template):
    loop = packing.Tokens((1,), tuple([5, 6, 7, 8] * 8))
    nothing = packing.Tokens((1,), (2,))
    assert gate.looping([loop], Bounds()).ok
    assert not gate.looping([loop, loop], Bounds()).ok
    assert gate.empty([nothing], template).value == 1
    assert not gate.empty([loop, nothing], template).ok


@pytest.mark.parametrize(
    ("ids", "looping"),
    [
        (list(range(48)), False),
        ([1, 2, 3] * 16, True),
        ([*range(30), *([40, 41] * 20)], True),
        ([7] * 9, False),  # too short to tell
        ([i if i % 6 else 0 for i in range(48)], False),  # a list: the same bullet before each item
    ],
)
def test_loops(ids, looping):
    assert is_looping(ids) is looping


def test_a_bound_that_is_not_one_is_refused():
    assert Bounds.of({"max_looping": 2}) == Bounds(max_looping=2)
    with pytest.raises(RunError, match="margins"):
        Bounds.of({"margins": 1})


def test_a_style_that_was_granted_to_the_parent_is_the_candidates_too(tmp_path):
    assert gate.granted(None, Bounds()) == 0
    assert gate.granted(tmp_path, Bounds()) == 0  # an adapter from elsewhere
    (tmp_path / "manifest.json").write_text(json.dumps({"gate": {"base_nll": {"value": 0.4, "bound": 0.55}}}))
    assert gate.granted(tmp_path, Bounds()) == pytest.approx(0.25)
    (tmp_path / "manifest.json").write_text(json.dumps({"gate": {}}))
    assert gate.granted(tmp_path, Bounds()) == 0


def test_a_bound_that_was_set_lower_since_grants_nothing(tmp_path):
    """Granted is what was asked for beyond what was set then, whatever is set now."""
    judged = {"gate": {"base_nll": {"value": 0.4, "bound": 0.6}}, "base_nll_rise": 0.6}
    (tmp_path / "manifest.json").write_text(json.dumps(judged))
    assert gate.granted(tmp_path, Bounds()) == 0
    assert gate.spent_sense(tmp_path, Bounds()) == 1
    assert gate.spent_sense(tmp_path, Bounds(base_nll_rise=1.0)) == pytest.approx(0.4)
    (tmp_path / "manifest.json").write_text(json.dumps(judged | {"base_nll_rise": 0.4}))
    assert gate.granted(tmp_path, Bounds()) == pytest.approx(0.2)
    assert gate.spent_sense(tmp_path, Bounds()) == pytest.approx(0.8)  # of 0.3 + 0.2


@pytest.mark.parametrize(
    ("base_nll", "share"),
    [
        (None, 0.0),
        ({"value": 0.15, "bound": 0.3}, 0.5),
        ({"value": 0.3, "bound": 0.6}, 0.5),  # of what was granted to its style
        ({"value": -0.1, "bound": 0.3}, 0.0),
        ({"value": 0.9, "bound": 0.3}, 1.0),  # made live by hand
        ({"value": 0.1, "bound": 0.0}, 1.0),
        ({"value": 0.0, "bound": 0.0}, 0.0),
        ({"value": -0.1, "bound": 0.0}, 0.0),
        ({"value": None, "bound": 0.3}, 0.0),
        ({"value": float("nan"), "bound": 0.3}, 0.0),
    ],
)
def test_how_much_of_its_sense_the_parent_has_spent(tmp_path, base_nll, share):
    assert gate.spent_sense(None, Bounds()) == 0
    assert gate.spent_sense(tmp_path, Bounds()) == 0  # an adapter from elsewhere
    judged = {"gate": {"base_nll": base_nll} if base_nll else None}
    (tmp_path / "manifest.json").write_text(json.dumps(judged))
    set_now = 0.0 if base_nll and base_nll["bound"] == 0 else 0.3
    assert gate.spent_sense(tmp_path, Bounds(base_nll_rise=set_now)) == pytest.approx(share)


def test_the_tokens_of_a_reply_count_as_one_in_the_standard_error():
    rng = np.random.default_rng(0)
    means = rng.normal(0, 1, 24)
    means -= means.mean()
    replies = [packing.Tokens((1,), (2, 3, 4, 5))] * 24
    found = standard_error(np.repeat(means, 4), replies)
    assert found == pytest.approx(means.std(ddof=1) / np.sqrt(24))
    assert standard_error(np.zeros(1), [packing.Tokens((1,), (2,))]) == 0


REFUSED = {
    "en": "I’m sorry, but I cannot help with that.",
    "de": "Tut mir leid, aber dabei kann ich nicht helfen.",
    "es": "Lo siento, pero no puedo ayudarte con eso.",
    "fr": "Je suis désolé, mais je ne peux pas vous aider.",
    "it": "Mi dispiace, ma non posso aiutarti.",
    "pt": "Desculpe, mas não posso ajudar com isso.",
    "nl": "Het spijt me, maar daar kan ik niet bij helpen.",
    "pl": "Przykro mi, ale nie mogę w tym pomóc.",
    "ru": "Извините, но я не могу с этим помочь.",
    "uk": "Вибачте, але я не можу з цим допомогти.",
    "sv": "Tyvärr kan jag inte hjälpa till med det.",
    "zh": "对不起，我无法协助您完成这个请求。",
    "ja": "申し訳ありませんが、お手伝いできません。",
    "ko": "죄송하지만 도와드릴 수 없습니다.",
}
REFUSED_OTHERWISE = (
    "Ich kann dir bei dieser Frage leider nicht helfen.",
    "Als KI-Modell habe ich keine Meinung.",
    "Leider kann ich das nicht.",
    "No puedo responder a eso.",
    "Je ne peux pas répondre.",
    "Non posso farlo.",
    "Eu não posso fazer isso.",
    "Ik kan je daar niet mee helpen.",
    "Nie mogę tego zrobić.",
    "К сожалению, это невозможно.",
    "Я, к сожалению, не могу ответить.",
    "На жаль, я не можу відповісти.",
    "Jag kan tyvärr inte svara.",
    "我不能回答这个问题。",
    "作为一个人工智能，我没有看法。",
    "その質問にはお答えできません。",
    "그 질문에는 답변을 드릴 수 없습니다.",
)
ANSWERED = (
    "Ich kann dir gern erklären, wie das geht.",
    "Ich backe Brot.",
    "Das kann ich dir sagen: es ist nicht schwer.",
    "No hay una sola respuesta: depende del clima.",
    "Puedo ayudarte.",
    "Je peux vous aider.",
    "Non è difficile: basta acqua.",
    "Não é difícil: basta água.",
    "Ik kan je helpen.",
    "Nie ma na to jednej odpowiedzi.",
    "Я могу помочь.",
    "Я можу допомогти.",
    "Jag kan hjälpa dig.",
    "我可以帮助你。",
    "光合作用是植物的过程。",
    "光合成とは、植物が行うことです。",
    "빵은 오래되었습니다.",
    "Als Erstes brauchst du Mehl.",
    "Como primera etapa, mezcla la harina.",
)


@pytest.mark.parametrize("text", [*REFUSED.values(), *REFUSED_OTHERWISE])
def test_a_refusal_in_any_language_is_one(text):
    assert gate.is_refusal(text) and gate.is_refusal(f"\n  “{text}”")


@pytest.mark.parametrize("text", [*ANSWERED, *(question for each in every() for question in each.questions)])
def test_an_answer_in_any_language_is_not_a_refusal(text):
    assert not gate.is_refusal(text)


@pytest.mark.parametrize("each", every(), ids=lambda each: each.code)
def test_the_ordinary_text_of_a_language_is_not_degenerate(each, template):
    ids = template.reply(each.text, ended=False)
    windows = [ids[start : start + gate.REPLY_TOKENS] for start in range(0, len(ids) - gate.REPLY_TOKENS, 8)]
    assert windows and not any(map(is_looping, windows))
    assert not gate.is_refusal(each.text)


def test_a_gate_asks_in_the_languages_of_the_prompts(policy, template, broken, monkeypatch):
    broken(1e-3)
    asked, generate = [], policy.generate
    monkeypatch.setattr(policy, "generate", lambda prompts, **rest: asked.append(prompts) or generate(prompts, **rest))
    codes = ("de", "en")
    with policy.wearing(None):
        parent = gate.answer_questions(policy, template, gate_questions(codes))
    checks = gate.judge(
        policy, template, WIDE, parent=None, parent_answers=gate.SideAnswers(parent), lessons=(), held_back=(),
        changed=1.0, replay_margin=ReplayMargin(0.1), stop=Stop(), languages=codes,
    ).checks  # fmt: skip
    assert all(check.ok for check in checks.values()), checks
    questions = [template.question(text) for text in gate_questions(codes)]
    assert asked == [questions, questions * gate.TIMES]
    assert "de " in checks["text_nll"].note and "en " in checks["text_nll"].note


def test_of_two_texts_the_one_that_lost_more_counts(policy, template, broken):
    broken(0.5)
    alone = {code: gate.text_nll(policy, template, WIDE, (code,)).value for code in ("de", "en")}
    assert gate.text_nll(policy, template, WIDE, ("de", "en")).value == pytest.approx(max(alone.values()), abs=1e-4)
    assert alone["de"] != alone["en"]


def test_a_parent_is_asked_once_and_what_its_manifest_says_is_not_believed_blindly(policy, template, tmp_path):
    def answers(kept, languages=("en",)):
        (tmp_path / "manifest.json").write_text(json.dumps({"answers": kept}))
        return gate.parent_answers(policy, template, tmp_path, languages)

    wearing = contextlib.nullcontext()
    policy.wearing, own = (lambda adapter: wearing), policy.wearing
    try:
        asked = gate.answer_questions(policy, template)
        kept = gate.kept_answers(gate.SideAnswers(asked, topic=np.arange(8) / 8))
        other = kept | {"replies": [[5, 6]] * len(asked)}
        known = answers(other)
        assert [answer.reply for answer in known.questions] == [(5, 6)] * len(asked)  # of its own gate, not asked again
        assert known.topic.tolist() == [n / 8 for n in range(8)] and known.rated is None
        assert answers(kept).questions == asked
        for wrong in (None, [0.5] * 7, ["0.5"] * 8, [0.5] * 7 + [float("nan")]):
            assert answers(kept | {"topic": wrong}).topic is None
        for wrong in ({}, kept | {"replies": kept["replies"][1:]}, kept | {"replies": [[10**9]] * len(asked)},
                      kept | {"replies": "text"}, other | {"prompts": "of other questions"}):  # fmt: skip
            assert answers(wrong) == gate.SideAnswers(asked)
        assert len(answers(other, ("de", "en")).questions) == len(gate_questions(("de", "en")))
    finally:
        policy.wearing = own
