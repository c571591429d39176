// Calls of the JavaScript SDKs of OpenAI, Anthropic, Ollama and Vercel (`ai`): `bun sdks.mjs URL MODEL` prints a JSON
// object with "passed", or why it failed, for each. These SDKs validate little, so what is read is checked here.
import assert from "node:assert";
import OpenAI from "openai";
import { zodResponseFormat } from "openai/helpers/zod";
import Anthropic from "@anthropic-ai/sdk";
import { Ollama } from "ollama";
import { generateObject, generateText, jsonSchema, streamObject, streamText, tool } from "ai";
import { createAnthropic } from "@ai-sdk/anthropic";
import { createOpenAI } from "@ai-sdk/openai";
import { createOpenAICompatible } from "@ai-sdk/openai-compatible";
import { z } from "zod";

const [url, model] = process.argv.slice(2);
const options = { apiKey: "any", maxRetries: 0, timeout: 120_000 };
const openai = new OpenAI({ baseURL: `${url}/v1`, ...options });
const claude = new Anthropic({ baseURL: url, ...options });
const llama = new Ollama({ host: url });
const messages = [{ role: "user", content: "Say hello." }];
const person = [{ role: "user", content: "Ann is 7 years old. Who is she, as JSON?" }];
const Person = z.object({ name: z.string(), age: z.number().int() });
const text = (value) => assert.ok(typeof value === "string" && value.length > 0, `no text: ${JSON.stringify(value)}`);
const providers = {
  "ai, chat": createOpenAI({ baseURL: `${url}/v1`, apiKey: "any" }).chat(model),
  "ai, responses": createOpenAI({ baseURL: `${url}/v1`, apiKey: "any" }).responses(model),
  "ai, messages": createAnthropic({ baseURL: `${url}/v1`, apiKey: "any" })(model),
  "ai, compatible": createOpenAICompatible({
    name: "any", baseURL: `${url}/v1`, apiKey: "any", supportsStructuredOutputs: true,
  })(model),
};

const calls = {
  "openai: chat": async () =>
    text((await openai.chat.completions.create({ model, messages, max_tokens: 24 })).choices[0].message.content),
  "openai: chat stream": async () => {
    const stream = openai.chat.completions.stream({ model, messages, max_tokens: 24 });
    text((await stream.finalChatCompletion()).choices[0].message.content);
  },
  "openai: parse": async () => {
    const response_format = zodResponseFormat(Person, "person");
    const answer = await openai.chat.completions.parse({ model, messages: person, response_format, max_tokens: 96 });
    Person.parse(answer.choices[0].message.parsed);
  },
  "openai: responses": async () =>
    text((await openai.responses.create({ model, input: "Say hello.", max_output_tokens: 24 })).output_text),
  "openai: responses stream": async () => {
    const stream = openai.responses.stream({ model, input: "Say hello.", max_output_tokens: 24 });
    text((await stream.finalResponse()).output_text);
  },
  "openai: models": async () => text((await openai.models.list()).data[0].id),
  "anthropic: message": async () =>
    text((await claude.messages.create({ model, messages, max_tokens: 24 })).content[0].text),
  "anthropic: stream": async () => {
    const message = await claude.messages.stream({ model, messages, max_tokens: 24 }).finalMessage();
    text(message.content[0].text);
    assert.ok(message.usage.input_tokens > 0, "no input_tokens");
  },
  "anthropic: models": async () => text((await claude.models.list()).data[0].display_name),
  "ollama: chat": async () => text((await llama.chat({ model, messages, options: { num_predict: 24 } })).message.content),
  "ollama: stream": async () => {
    let said = "";
    for await (const line of await llama.chat({ model, messages, stream: true, options: { num_predict: 24 } }))
      said += line.message.content;
    text(said);
  },
  "ollama: list": async () => text((await llama.list()).models[0].name),
  "ollama: ps": async () => text((await llama.ps()).models[0].name),
};
for (const [name, provider] of Object.entries(providers)) {
  const common = { model: provider, maxRetries: 0, maxOutputTokens: 96, temperature: 0 };  // both ways alike
  calls[`${name}: text`] = async () => text((await generateText({ ...common, prompt: "Say hello." })).text);
  calls[`${name}: stream`] = async () => {
    let failure;
    const stream = streamText({ ...common, prompt: "Say hello.", onError: ({ error }) => (failure = error) });
    const said = await stream.text.catch((error) => { throw failure ?? error; });
    if (failure) throw failure;
    text(said);
  };
  calls[`${name}: object`] = async () =>
    Person.parse((await generateObject({ ...common, schema: Person, prompt: person[0].content })).object);
  calls[`${name}: object stream`] = async () => {
    let failure;
    const stream = streamObject({
      ...common, schema: Person, prompt: person[0].content, onError: ({ error }) => (failure = error),
    });
    for await (const _ of stream.partialObjectStream);
    if (failure) throw failure;
    Person.parse(await stream.object);
  };
  calls[`${name}: required tool`] = async () => {
    const numbers = { type: "object", properties: { a: { type: "integer" }, b: { type: "integer" } }, required: ["a", "b"] };
    const add = tool({ description: "Adds two numbers.", inputSchema: jsonSchema(numbers) });
    const answer = await generateText({
      ...common, prompt: "Add 2 and 3 with the tool.", tools: { add }, toolChoice: "required",
    });
    assert.deepEqual(answer.toolCalls.map((call) => call.toolName), ["add"]);
  };
}

const outcomes = {};
for (const [name, call] of Object.entries(calls)) {
  try {
    await call();
    outcomes[name] = "passed";
  } catch (error) {
    outcomes[name] = `${error.name}: ${error.message}`.slice(0, 300);
  }
}
console.log(JSON.stringify(outcomes));
