// /// script
// [tool.client]
// name = "openai (Node)"
// formats = ["chat", "responses"]
//
// [tool.client.npm]
// openai = "7.57.0"
// ///
// OpenAI's SDK for Node; its caller keeps the history.
import OpenAI from "openai";
import { LOOK, look, serve } from "./talking.mjs";

serve((setup) => {
  const client = new OpenAI({ baseURL: setup.base_url, apiKey: "any", maxRetries: 0 });
  const history = [];

  async function chat(text) {
    history.push({ role: "user", content: text });
    for (;;) {
      const request = { model: setup.model, messages: history };
      if (setup.tools) request.tools = [{ type: "function", function: LOOK }];
      const answer = setup.stream
        ? await client.chat.completions.stream(request).finalChatCompletion()
        : await client.chat.completions.create(request);
      const { role, content, tool_calls } = answer.choices[0].message;
      history.push(tool_calls?.length ? { role, content, tool_calls } : { role, content });
      if (!tool_calls?.length) return [content, answer.id];
      for (const call of tool_calls)
        history.push({ role: "tool", tool_call_id: call.id, content: look(JSON.parse(call.function.arguments)) });
    }
  }

  async function responses(text) {
    history.push({ role: "user", content: text });
    for (;;) {
      const request = { model: setup.model, input: history };
      if (setup.tools) request.tools = [{ type: "function", ...LOOK, strict: false }];
      const answer = setup.stream
        ? await client.responses.stream(request).finalResponse()
        : await client.responses.create(request);
      history.push(...answer.output);
      const calls = answer.output.filter((item) => item.type === "function_call");
      if (!calls.length) return [answer.output_text, answer.id];
      for (const call of calls)
        history.push({ type: "function_call_output", call_id: call.call_id, output: look(JSON.parse(call.arguments)) });
    }
  }

  return setup.format === "chat" ? chat : responses;
});
