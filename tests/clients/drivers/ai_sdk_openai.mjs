// /// script
// [tool.client]
// name = "AI SDK, @ai-sdk/openai"
// formats = ["chat", "responses"]
//
// [tool.client.npm]
// "@ai-sdk/openai" = "4.0.118"
// ai = "7.0.173"
// zod = "4.6.7"
// ///
// Vercel's AI SDK, provider of OpenAI; its caller keeps the messages.
import { createOpenAI } from "@ai-sdk/openai";
import { generateText, stepCountIs, streamText, tool } from "ai";
import { z } from "zod";
import { look, serve } from "./talking.mjs";

serve((setup) => {
  const provider = createOpenAI({ baseURL: setup.base_url, apiKey: "any" });
  const tools = { look: tool({ description: "Looks at a place.", inputSchema: z.object({ place: z.string() }), execute: look }) };
  const messages = [];
  return async (text) => {
    messages.push({ role: "user", content: text });
    const request = { model: setup.format === "chat" ? provider.chat(setup.model) : provider.responses(setup.model), messages, maxRetries: 0, stopWhen: stepCountIs(4), ...(setup.tools && { tools }) };
    const answer = setup.stream ? streamText(request) : await generateText(request);
    const [shown, response] = [await answer.text, await answer.response];
    messages.push(...(await answer.responseMessages ?? response.messages));
    return [shown, response.id];
  };
});
