"""A home before two servers, in a process of its own: each answers its own, and a kill loses nothing of either."""

from __future__ import annotations

from pathlib import Path

from scripts.fakes.backend import FakeBackend
from scripts.harness.serving import Serving
from store.store import Store


async def test_two_servers_and_a_kill(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    own, coder = FakeBackend(), FakeBackend()
    own.model, coder.model, coder.says = "small", "qwen", "code"
    await own.start()
    await coder.start()
    (home / "rlproxy.toml").write_text(f'[models.coder]\nurl = "{coder.url}"\nkind = "vllm"\nmodel = "qwen"\n')
    server = {"RLPROXY_BACKEND__URL": own.url, "RLPROXY_MODELS__CODER__API_KEY": "key-of-coder"}
    serving = Serving(home, tmp_path / "nowhere", "--backend", "vllm", "--start-at", "1000", **server)
    ids = {"small": [], "coder": []}

    async def talk() -> None:
        for model, words in (("small", "You said: hello "), ("coder", "code ")):
            answer, adapter = await serving.chat("hello", model=model)
            assert (answer["choices"][0]["message"]["content"], answer["model"]) == (words, model)
            assert adapter == ("base" if model == "small" else "none")
            await serving.rate(answer["id"], "good")
            ids[model].append(answer["id"])

    try:
        await serving.start()
        await talk()
        await serving.kill()
        await serving.start()
        await talk()
        status = await serving.status()
        assert status["ratings"]["fresh"] == 2 and status["ratings"]["untrainable"] == {"further_model": 2}
        assert list(status["further_models"]) == ["coder"]
        await own.stop()  # the one does not hang on the other
        answer, _ = await serving.chat("hello", model="coder")
        ids["coder"].append(answer["id"])
        assert await serving.stop() == 0, serving.log
    finally:
        await own.stop()
        await coder.stop()
    assert {headers["authorization"] for headers in coder.headers} == {"Bearer key-of-coder"}
    assert "key-of-coder" not in str(own.headers) + serving.log
    assert {body["model"] for body in coder.requests} == {"qwen"}
    store = await Store.open(home)
    try:
        for model, names in ids.items():
            for id in names:
                completion = await store.completions.get(id)
                assert completion is not None and completion.status == "done" and completion.new.model == model
                assert (completion.new.untrainable is None) == (model == "small")
    finally:
        await store.close()
