// /// script
// [tool.client]
// name = "OpenAI Agents SDK (JS)"
// formats = ["chat", "responses"]
//
// [tool.client.npm]
// "@openai/agents" = "0.20.0"
// openai = "7.57.0"
// zod = "4.6.7"
// ///
// OpenAI's Agents SDK for JavaScript: an agent with a function tool, given the history of before.
import { Agent, OpenAIProvider, Runner, setTracingDisabled, tool, user } from "@openai/agents";
import { z } from "zod";
import { look, serve } from "./talking.mjs";

setTracingDisabled(true);

serve((setup) => {
  const responses = setup.format === "responses";
  const modelProvider = new OpenAIProvider({ baseURL: setup.base_url, apiKey: "any", useResponses: responses });
  const looks = tool({ name: "look", description: "Looks at a place.", parameters: z.object({ place: z.string() }), execute: look });
  const agent = new Agent({ name: "Helper", instructions: "Be brief.", model: setup.model, tools: setup.tools ? [looks] : [] });
  const runner = new Runner({ modelProvider });
  let history = [];
  return async (text) => {
    const run = await runner.run(agent, [...history, user(text)], { stream: setup.stream });
    if (setup.stream) await run.completed;
    history = run.history;
    return [run.finalOutput, run.lastResponseId];
  };
});
