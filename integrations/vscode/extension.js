"use strict";
// Thumbs in the status bar for the newest finished main answer of rlproxy, and a correction from the selection.
// A click rates the answer whose first words the tooltip shows, however many answers come meanwhile.

const vscode = require("vscode");

const EVERY_MS = 2000;
const PATIENCE_MS = 10000;
const LOOKED_AT = 20; // answers
const WORDS = 80; // characters of an answer in the tooltip
const KEY = "rlproxy.key";

class Thumbs {
  constructor(context) {
    this.context = context;
    this.answer = null; // the one that the buttons rate
    this.rated = null; // the last rating, to be taken back
    this.problem = "";
    this.busy = false;
    const left = vscode.StatusBarAlignment.Left;
    this.good = vscode.window.createStatusBarItem(left, 11);
    this.bad = vscode.window.createStatusBarItem(left, 10);
    [this.good.text, this.good.command] = ["$(thumbsup)", "rlproxy.good"];
    [this.bad.text, this.bad.command] = ["$(thumbsdown)", "rlproxy.bad"];
    context.subscriptions.push(this.good, this.bad);
  }

  async ask(method, path, body) {
    const settings = vscode.workspace.getConfiguration("rlproxy");
    const key = await this.context.secrets.get(KEY);
    const headers = { ...(body && { "content-type": "application/json" }), ...(key && { authorization: `Bearer ${key}` }) };
    let response;
    try {
      response = await fetch(settings.get("url").replace(/\/+$/, "") + path, {
        method, headers, body: body && JSON.stringify(body), signal: AbortSignal.timeout(PATIENCE_MS), redirect: "error",
      });
    } catch {
      throw new Error(`no rlproxy answers at ${settings.get("url")}; start it with \`rlproxy serve\``);
    }
    const answer = await response.json().catch(() => ({}));
    if (!response.ok) throw new Error(answer.error?.message ?? `rlproxy answered ${response.status}`);
    return answer;
  }

  // The newest answer that nobody has rated. Called by a timer; one look at a time.
  async look() {
    if (this.busy) return;
    this.busy = true;
    try {
      const session = vscode.workspace.getConfiguration("rlproxy").get("session");
      const query = new URLSearchParams({ limit: LOOKED_AT, turn: "main", ...(session && { session }) });
      const rows = (await this.ask("GET", `/rl/completions?${query}`)).data;
      const newest = rows.find((row) => row.status === "done");
      this.answer = newest && newest.ratings.length === 0 ? newest : null;
      this.problem = "";
    } catch (error) {
      this.answer = null;
      this.problem = error.message;
    } finally {
      this.busy = false;
      this.draw();
    }
  }

  draw() {
    for (const [item, word] of [[this.good, "good"], [this.bad, "bad"]]) {
      const first = (this.answer?.text ?? "").replace(/\s+/g, " ").slice(0, WORDS);
      item.tooltip = this.problem || (this.answer ? `${word}: “${first}”` : "rlproxy: the newest answer is rated");
      if (this.answer || this.problem) item.show();
      else item.hide();
    }
  }

  async rate(rating, texts = {}) {
    const answer = this.answer;
    if (!answer) throw new Error(this.problem || "there is no answer without a rating");
    this.rated = await this.ask("POST", "/v1/feedback", { completion_id: answer.id, rating, source: "vscode", ...texts });
    this.answer = null;
    this.draw();
    const status = await this.ask("GET", "/rl/status");
    const { fresh, needed } = status.ratings;
    vscode.window.setStatusBarMessage(`rated ${rating}; ${fresh} of ${needed} ratings for the next run`, 5000);
  }

  async fix() {
    const editor = vscode.window.activeTextEditor;
    const correction = editor ? editor.document.getText(editor.selection) : "";
    if (!correction.trim()) throw new Error("select the better answer first");
    await this.rate("bad", { correction });
  }

  async undo() {
    if (!this.rated) throw new Error("nothing was rated here yet");
    await this.ask("DELETE", `/v1/feedback/${encodeURIComponent(this.rated.id)}`);
    this.rated = null;
    await this.look();
  }

  async setKey() {
    const key = await vscode.window.showInputBox({ password: true, prompt: "A key of the role rate; empty: none" });
    if (key === undefined) return;
    if (key) await this.context.secrets.store(KEY, key);
    else await this.context.secrets.delete(KEY);
    await this.look();
  }
}

function activate(context) {
  const thumbs = new Thumbs(context);
  const acts = {
    good: () => thumbs.rate("good"), bad: () => thumbs.rate("bad"), fix: () => thumbs.fix(), undo: () => thumbs.undo(),
    setKey: () => thumbs.setKey(),
  };
  for (const [name, act] of Object.entries(acts)) {
    // VS Code makes links of [text](command:…), and part of the message may be a server's.
    const plain = (text) => text.replace(/\[/g, "(").replace(/\]/g, ")");
    const run = () => act().catch((error) => vscode.window.showErrorMessage(plain(`rlproxy: ${error.message}`)));
    context.subscriptions.push(vscode.commands.registerCommand(`rlproxy.${name}`, run));
  }
  const timer = setInterval(() => thumbs.look(), EVERY_MS);
  context.subscriptions.push({ dispose: () => clearInterval(timer) });
  return thumbs.look();
}

module.exports = { activate, deactivate: () => {} };
