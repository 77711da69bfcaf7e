// A test of a program in JavaScript, with the emulator's verbs over HTTP: `node examples/emulator.mjs HOST:PORT`.
// It deletes everything that the emulator has: give it one of its own.
// The program under test is the function `drain`; everything else is the test.
import assert from "node:assert/strict";

const server = `http://${process.argv[2] ?? process.env.PUBSUB_EMULATOR_HOST}`;
const [topic, subscription] = ["projects/p/topics/orders", "projects/p/subscriptions/orders"];

async function ask(method, path, body) {
  const answer = await fetch(server + path, { method, body: body && JSON.stringify(body) });
  const content = await answer.json();
  if (!answer.ok) throw new Error(content.error.message);
  return content;
}
const api = (method, path, body) => ask(method, `/v1/${path}`, body);
const emulator = {
  look: (verb, fields) => ask("GET", `/_emulator/${verb}?${new URLSearchParams(fields)}`),
  tell: (verb, fields = {}) => ask("POST", `/_emulator/${verb}`, fields),
};

/** Pull what there is and acknowledge it, trying again where the service is not there. */
async function drain() {
  for (;;) {
    try {
      const { receivedMessages = [] } = await api("POST", `${subscription}:pull`, { maxMessages: 100 });
      const ackIds = receivedMessages.map((each) => each.ackId);
      await api("POST", `${subscription}:acknowledge`, { ackIds });
      return receivedMessages.map((each) => Buffer.from(each.message.data, "base64").toString());
    } catch (error) {
      if (!/Pull was told/.test(error.message)) throw error;
    }
  }
}

console.log(`deleting every resource and message at ${server}`);
await emulator.tell("reset");
await api("PUT", topic, {});
await api("PUT", subscription, { topic, ackDeadlineSeconds: 10 });
await emulator.tell("publish", { topic, messages: [{ data: btoa("one") }, { data: btoa("two") }] });

// A consumer that died: its lease ends as soon as the clock says so.
await api("POST", `${subscription}:pull`, { maxMessages: 100 });
await emulator.tell("advance", { seconds: 11 });

// A service that is not there for two calls.
await emulator.tell("fail", { rpc: "Pull", code: "UNAVAILABLE", count: 2 });
assert.deepEqual((await drain()).sort(), ["one", "two"]);

const { undelivered } = (await emulator.look("backlog"))[subscription];
assert.equal(undelivered, 0);
const records = await emulator.look("messages", { subscription });
assert.deepEqual(records.map((each) => each.acked), [true, true]);
assert.deepEqual(records.map((each) => each.deliveries), [2, 2]);
console.log(`acknowledged ${records.length} messages, each delivered twice`);
