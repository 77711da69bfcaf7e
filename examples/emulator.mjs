// A test of a program in JavaScript, with the emulator's verbs over HTTP: `node examples/emulator.mjs HOST:PORT`.
// It deletes every resource of the emulator, so start one for it.
// The program under test is the function `drain`. Everything else is the test.
import assert from "node:assert/strict";

const server = `http://${process.argv[2] ?? process.env.PUBSUB_EMULATOR_HOST}`;
const [topic, subscription] = ["projects/p/topics/orders", "projects/p/subscriptions/orders"];

async function ask(method, path, body) {
  const answer = await fetch(server + path, { method, body: body && JSON.stringify(body) });
  const content = await answer.json();
  if (!answer.ok) throw Object.assign(new Error(content.error.message), { status: content.error.status });
  return content;
}
const api = (method, path, body) => ask(method, `/v1/${path}`, body);
const emulator = {
  look: (verb, fields) => ask("GET", `/_emulator/${verb}?${new URLSearchParams(fields)}`),
  tell: (verb, fields = {}) => ask("POST", `/_emulator/${verb}`, fields),
};

/** Pull the available messages and acknowledge them. Try again while the service is unavailable. */
async function drain() {
  for (;;) {
    try {
      const { receivedMessages = [] } = await api("POST", `${subscription}:pull`, { maxMessages: 100 });
      const ackIds = receivedMessages.map((received) => received.ackId);
      await api("POST", `${subscription}:acknowledge`, { ackIds });
      return receivedMessages.map((received) => Buffer.from(received.message.data, "base64").toString());
    } catch (error) {
      if (error.status !== "UNAVAILABLE") throw error;
    }
  }
}

console.log(`deleting every resource and message at ${server}`);
await emulator.tell("reset");
await api("PUT", topic, {});
await api("PUT", subscription, { topic, ackDeadlineSeconds: 10 });
await emulator.tell("publish", { topic, messages: [{ data: btoa("one") }, { data: btoa("two") }] });

// A consumer that died: its lease ends when the clock passes it.
await api("POST", `${subscription}:pull`, { maxMessages: 100 });
await emulator.tell("advance", { seconds: 11 });

// The service is unavailable for two calls.
await emulator.tell("fail", { rpc: "Pull", code: "UNAVAILABLE", count: 2 });
assert.deepEqual((await drain()).sort(), ["one", "two"]);

const { undelivered } = (await emulator.look("backlog"))[subscription];
assert.equal(undelivered, 0);
const records = await emulator.look("messages", { subscription });
assert.deepEqual(records.map((record) => record.acked), [true, true]);
assert.deepEqual(records.map((record) => record.deliveries), [2, 2]);
console.log(`acknowledged ${records.length} messages, each delivered twice`);
