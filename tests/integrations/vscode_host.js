// A fake of VS Code's extension host: as much of its API as the extension asks for. A line on stdin is an act; after
// each a line of JSON says what a person would see.
"use strict";

const Module = require("module");
const readline = require("readline");

const [, , path, url] = process.argv;
const items = [], commands = {}, secrets = new Map();
let selection = "", told = "", typed;

class Item {
  show() { this.visible = true; }
  hide() { this.visible = false; }
  dispose() {}
}

const vscode = {
  StatusBarAlignment: { Left: 1, Right: 2 },
  commands: { registerCommand: (name, act) => { commands[name] = act; return { dispose() {} }; } },
  window: {
    createStatusBarItem: () => { const item = new Item(); items.push(item); return item; },
    setStatusBarMessage: (text) => { told = text; },
    showErrorMessage: (text) => { told = text; },
    showInputBox: async () => typed,
    get activeTextEditor() { return { selection: {}, document: { getText: () => selection } }; },
  },
  workspace: { getConfiguration: () => ({ get: (name) => ({ url, session: "" })[name] }) },
};

const load = Module._load;
Module._load = (name, ...rest) => (name === "vscode" ? vscode : load(name, ...rest));
const context = {
  subscriptions: [],
  secrets: {
    get: async (name) => secrets.get(name),
    store: async (name, text) => { secrets.set(name, text); },
    delete: async (name) => { secrets.delete(name); },
  },
};

function state() {
  const [good, bad] = items;
  return JSON.stringify({ good: good.visible ? good.tooltip : null, bad: bad.visible ? bad.tooltip : null, told });
}

(async () => {
  const extension = require(path);
  const manifest = require(`${path}/package.json`);
  await extension.activate(context);
  for (const { command } of manifest.contributes.commands) if (!commands[command]) throw new Error(`no ${command}`);
  console.log(state());
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const act = JSON.parse(line);
    told = "";
    if (act.select !== undefined) selection = act.select;
    if (act.type !== undefined) typed = act.type;
    if (act.command) await commands[act.command]();
    if (act.wait) await new Promise((again) => setTimeout(again, act.wait));
    console.log(state());
  }
  for (const each of context.subscriptions) each.dispose();
})();
