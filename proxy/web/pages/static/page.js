// What a page does between two answers of the server: keys, what happens meanwhile, and where the focus goes.
// Owns no data and makes no markup of its own; every change of the page is HTML that the server rendered.
"use strict";
(() => {
  const told = document.getElementById("told");
  document.documentElement.classList.add("live"); // what only a page without scripts needs can go
  const shown = (at) => at.closest("details:not([open])") === null;
  const turns = () => [...document.querySelectorAll("article.turn")].filter(shown);
  const talks = (list) => [...list.querySelectorAll(":scope > section.talk")];
  let current = null; // the id of the turn that keys act on
  let held = null; // what a person types before the form for it is there
  let sends = false; // and that it is to be sent

  // Keys

  const typing = (at) => at.closest("input:not([type=checkbox]):not([type=radio]), textarea, select") !== null;

  function focusOn(turn) {
    if (!turn) return;
    current = turn.id;
    turn.focus({ preventScroll: true });
    turn.scrollIntoView({ block: "nearest" });
  }

  function move(by) {
    const all = turns();
    const at = all.findIndex((turn) => turn.id === current);
    focusOn(all[at < 0 ? 0 : Math.min(all.length - 1, Math.max(0, at + by))]);
  }

  document.addEventListener("keydown", (event) => {
    if (event.key === "Escape") return leave(event.target);
    if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && event.target.form) {
      event.preventDefault();
      return event.target.form.requestSubmit();
    }
    if (held !== null && event.key === "Enter" && (event.ctrlKey || event.metaKey)) {
      sends = true;
      return;
    }
    if (event.ctrlKey || event.metaKey || event.altKey || typing(event.target)) return;
    if (held !== null && event.key.length === 1) {
      event.preventDefault();
      held += event.key;
      return;
    }
    if (event.key === "j" || event.key === "k") {
      event.preventDefault();
      return move(event.key === "j" ? 1 : -1);
    }
    if (event.key === "/") {
      const search = document.querySelector("input[type=search]");
      if (search) { event.preventDefault(); search.focus(); }
      return;
    }
    const room = turns().length ? document.getElementById(current) : document;
    const find = (where) => [...(where?.querySelectorAll("[data-key]") ?? [])].find((at) => at.dataset.key === event.key);
    if (!room && find(document)) { // none is chosen yet: the first key only shows which answer the next one is for
      event.preventDefault();
      return move(0);
    }
    const act = room && (find(room) ?? (event.key === "t" && find(room.closest?.("#list > section.talk"))));
    if (!act) return;
    event.preventDefault();
    if (act.dataset.key === "c" || act.dataset.key === "e") held = "";
    act.click();
  });

  document.addEventListener("focusin", (event) => {
    const turn = event.target.closest("article.turn");
    if (turn) current = turn.id;
  });

  // Folded again: the keys act on what is still to be seen.
  document.addEventListener("toggle", (event) => {
    const fold = event.target;
    if (!fold.matches("details.earlier") || fold.open || !fold.querySelector(`[id="${current}"]`)) return;
    focusOn(fold.closest("section.talk").querySelector("article.turn"));
  }, true);

  function leave(from) {
    const form = from.closest(".form");
    if (!form) return;
    form.replaceChildren();
    const turn = form.closest("article.turn");
    focusOn(turn);
    if (turn && stale.has(turn.dataset.id)) renew(turn.dataset.id);
  }

  // Clicks that need no server

  document.addEventListener("click", async (event) => {
    const at = event.target.closest("[data-leave], [data-copy]");
    if (!at) return;
    if (at.hasAttribute("data-leave")) return leave(at);
    await navigator.clipboard.writeText(document.querySelector(at.dataset.copy).textContent);
    at.textContent = "Copied";
  });
  // Copied text of an answer: a signal, once for each answer.
  const copied = new Set();
  document.addEventListener("copy", () => {
    const from = document.getSelection()?.anchorNode; // a text, or the whole element
    const at = (from?.closest ? from : from?.parentElement)?.closest("article.turn .said")?.closest("article.turn");
    if (!at || copied.has(at.dataset.id) || String(document.getSelection()).length < 20) return;
    copied.add(at.dataset.id);
    htmx.ajax("POST", "/page/completions/" + encodeURIComponent(at.dataset.id) + "/copied", { source: at, swap: "none" });
  });
  document.addEventListener("change", (event) => event.target.closest(".filters")?.requestSubmit());
  document.addEventListener("submit", (event) => {
    const form = event.target;
    if (form.matches(".filters")) for (const field of form.elements) field.disabled = !field.value; // short addresses
    if (form.hasAttribute("data-slow")) {
      const button = form.querySelector("button.main");
      setTimeout(() => { button.disabled = true; button.textContent = "Asking …"; });
    }
  });

  // After an answer of the server: the focus stays where the person was, and errors are told.

  let had = null;
  document.addEventListener("htmx:beforeSwap", (event) => {
    const turn = event.detail.target?.closest?.("article.turn");
    if (turn === event.detail.requestConfig.elt && turn && busy(turn)) {
      stale.add(turn.dataset.id); // a form was opened while the row was on its way
      event.detail.shouldSwap = false;
      return;
    }
    had = turn && event.detail.target === turn && turn.contains(document.activeElement) ? turn.id : null;
  });
  document.addEventListener("htmx:afterSettle", (event) => {
    if (had) { document.getElementById(had)?.focus({ preventScroll: true }); had = null; }
    const field = event.target.querySelector?.("[autofocus]");
    if (!field) return;
    field.focus();
    if (field.matches("textarea")) {
      field.value += held ?? "";
      field.setSelectionRange(field.value.length, field.value.length);
      if (held && sends) field.form.requestSubmit();
    }
    held = null;
    sends = false;
  });
  document.addEventListener("htmx:responseError", (event) => say(event.detail.xhr.responseText));
  document.addEventListener("htmx:sendError", () => say("rlproxy does not answer; nothing was done."));

  document.addEventListener("told", (event) => show(event.detail.value));

  let quiet;
  function say(text) {
    held = null;
    sends = false;
    show(text);
  }
  function show(text) {
    told.textContent = text;
    clearTimeout(quiet);
    quiet = setTimeout(() => told.replaceChildren(), 8000);
  }

  // What happens meanwhile

  const later = {};
  function soon(name, what, wait = 250) {
    later[name] ??= setTimeout(() => { delete later[name]; what(); }, wait);
  }
  const refresh = (id) => { const at = document.getElementById(id); if (at) htmx.trigger(at, "live"); };

  function happened(kind, data) {
    if (kind === "captured") soon("captured", captured);
    if (kind === "rating" || kind === "retracted") rated(data.completion);
    for (const at of document.querySelectorAll(`[data-on~="${kind}"]`)) {
      soon(at.id, () => refresh(at.id));
    }
    for (const at of document.querySelectorAll(`[data-slowly~="${kind}"]`)) {
      soon(at.id + " slowly", () => refresh(at.id), 3000); // counting all ratings is work
    }
  }

  // Rows that others' ratings have changed. One is renewed when nobody types in it and nothing else is asked for it.
  const stale = new Set();
  const busy = (turn) => turn.querySelector(".form form, .htmx-request") !== null;

  function rated(id) {
    stale.add(id);
    renew(id);
  }

  function renew(id) {
    const turn = [...document.querySelectorAll("article.turn")].find((one) => one.dataset.id === id);
    if (!turn || busy(turn) || turn.matches(".htmx-request")) return;
    stale.delete(id);
    htmx.ajax("GET", "/page/completions/" + encodeURIComponent(id), { source: turn, target: turn, swap: "outerHTML" })
      .then(() => stale.has(id) && renew(id));
  }

  async function captured() {
    if (document.querySelector("[data-waiting]")) return location.reload();
    const list = document.querySelector("[data-rows]");
    if (!list) return;
    const answer = await fetch(list.dataset.rows);
    if (!answer.ok) return;
    const fresh = new DOMParser().parseFromString(await answer.text(), "text/html");
    list.querySelector(".none")?.remove();
    steadily(list, () => {
      for (const talk of talks(fresh.body)) {
        if (!document.getElementById("c" + talk.dataset.seq)) arrived(list, talk);
      }
    });
  }

  // What a person points at or works in stays where it is on the screen, whatever comes above it.
  function steadily(list, change) {
    const anchor = list.querySelector("article.turn:hover") ?? document.activeElement?.closest("#list article.turn");
    const top = anchor?.getBoundingClientRect().top;
    change();
    const shift = () => (anchor?.isConnected ? anchor.getBoundingClientRect().top - top : 0);
    if (!shift()) return;
    scrollBy(0, shift());
    if (shift() > 0) { // the page is too short to scroll so far
      list.style.paddingBottom = `${(parseFloat(list.style.paddingBottom) || 0) + shift()}px`;
      scrollBy(0, shift());
    }
  }

  // A conversation has one more turn: it moves up. Where a person is in it, it stays, and the turn comes above.
  function arrived(list, talk) {
    const conversation = talk.dataset.conversation; // none where each turn stands alone
    const old = conversation && talks(list).find((one) => one.dataset.conversation === conversation);
    const turn = talk.querySelector("article.turn");
    if (old && Number(old.dataset.seq) > Number(talk.dataset.seq)) return;
    turn.classList.add("new");
    if (old?.contains(document.activeElement) || old?.matches(":hover") || old?.querySelector(".form form")) {
      old.dataset.seq = talk.dataset.seq;
      old.prepend(turn);
      return htmx.process(turn);
    }
    const open = old?.querySelector("details.earlier[open]");
    old?.remove();
    const below = talks(list).find((one) => Number(one.dataset.seq) < Number(talk.dataset.seq));
    if (talks(list).length && !below && !old) return; // it belongs to an older part of the list
    list.insertBefore(talk, below ?? list.querySelector(":scope > .older"));
    htmx.process(talk);
    const fold = talk.querySelector("details.earlier"); // none where the filters leave no earlier turn
    if (open && fold) fold.open = true;
  }

  const KINDS = ["captured", "rating", "retracted", "run", "swap", "watch", "paused", "resumed", "waiting", "problem"];
  let events = null;
  function listen() {
    if (events) return;
    events = new EventSource("/rl/events");
    for (const kind of KINDS) events.addEventListener(kind, (event) => happened(kind, JSON.parse(event.data)));
    events.onopen = () => {
      if (document.documentElement.dataset.live === "no") { told.replaceChildren(); captured(); }
      document.documentElement.dataset.live = "yes";
    };
    events.onerror = () => {
      document.documentElement.dataset.live = "no";
      clearTimeout(quiet);
      told.textContent = "rlproxy does not answer. What you see may be old, and nothing that you do arrives.";
      if (events?.readyState === EventSource.CLOSED) { events = null; setTimeout(listen, 3000); }
    };
  }
  // A hidden tab holds no connection: a browser has six for one address. What it missed is asked for when it is seen.
  document.addEventListener("visibilitychange", () => {
    if (document.hidden) { events?.close(); events = null; return; }
    listen();
    captured();
    for (const kind of ["run", "swap"]) happened(kind, {});
  });
  listen();
})();
