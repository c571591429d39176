// /// script
// [tool.client]
// name = "LangChain (JS)"
// formats = ["chat", "responses"]
//
// [tool.client.npm]
// "@langchain/openai" = "1.6.0"
// "@langchain/core" = "1.4.0"
// "@langchain/langgraph" = "1.7.3"
// langchain = "1.5.14"
// zod = "4.6.7"
// ///
// LangChain for JavaScript: ChatOpenAI in an agent of LangGraph, which keeps the messages.
import { tool } from "@langchain/core/tools";
import { MemorySaver } from "@langchain/langgraph";
import { ChatOpenAI } from "@langchain/openai";
import { createAgent } from "langchain";
import { z } from "zod";
import { look, serve } from "./talking.mjs";

serve((setup) => {
  const model = new ChatOpenAI({
    model: setup.model, apiKey: "any", maxRetries: 0, streaming: setup.stream,
    useResponsesApi: setup.format === "responses", configuration: { baseURL: setup.base_url },
  });
  const looks = tool(look, { name: "look", description: "Looks at a place.", schema: z.object({ place: z.string() }) });
  const agent = createAgent({ model, tools: setup.tools ? [looks] : [], checkpointer: new MemorySaver() });
  return async (text) => {
    const done = await agent.invoke({ messages: [{ role: "user", content: text }] }, { configurable: { thread_id: "1" } });
    const answer = done.messages.at(-1);
    return [answer.text, answer.response_metadata?.id ?? answer.id];
  };
});
