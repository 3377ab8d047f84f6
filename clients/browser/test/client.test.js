// What a page sees of the client, against a broker in the same process.

import assert from "node:assert/strict";
import { test as nodeTest } from "node:test";

import { connect, FanlogError } from "../fanlog.js";
import { FakeBroker } from "./fake_broker.js";

/** A test that may not hang. */
function test(name, act) {
  nodeTest(name, { timeout: 100_000 }, act);
}

const URL_A = "http://a.test";
const URL_B = "http://b.test";

/** A client that is closed when the test is over. */
function clientOf(t, broker, options = {}, url = URL_A) {
  const client = connect(url, { ...broker.options, ...options });
  t.after(() => client.close());
  return client;
}

async function until(condition, what = condition) {
  for (let i = 0; i < 2_000; i += 1) {
    if (condition()) return;
    await new Promise((resolve) => setImmediate(resolve));
    if (i > 200) await new Promise((resolve) => setTimeout(resolve, 5));
  }
  assert.fail(`never true: ${what}`);
}

/** Lets promises settle, where the clock stands still. */
async function turns() {
  for (let i = 0; i < 30; i += 1) await null;
}

async function take(subscription, count) {
  const values = [];
  while (values.length < count) values.push((await subscription.next()).value.value);
  return values;
}

function memoryStorage() {
  const kept = new Map();
  return { kept, getItem: (key) => kept.get(key) ?? null, setItem: (key, text) => kept.set(key, text) };
}

test("a subscription is an async iterator", async (t) => {
  const broker = new FakeBroker();
  broker.publish("chat", 1, 2, 3);
  const client = clientOf(t, broker);
  const seen = [];
  for await (const message of client.subscribe("chat", { last: 2 })) {
    seen.push([message.topic, message.partition, message.offset, message.value]);
    if (message.value === 3) broker.publish("chat", 4);
    if (message.value === 4) break;
  }
  assert.deepEqual(seen, [["chat", 0, 1, 2], ["chat", 0, 2, 3], ["chat", 0, 3, 4]]);
  await until(() => broker.ops.at(-1).op === "unsubscribe");
});

test("a subscription calls back, in order, and a fault of the page does not stop it", async (t) => {
  const broker = new FakeBroker();
  t.mock.method(console, "error", () => {});
  const client = clientOf(t, broker);
  const seen = [];
  await client.subscribe("chat", {}, async (message) => {
    await null;
    seen.push(message.value);
    if (message.value === 1) throw new Error("the page's fault");
  }).ready;
  broker.publish("chat", 1, 2, 3);
  await until(() => seen.length === 3);
  assert.deepEqual(seen, [1, 2, 3]);
});

test("values are text, JSON, bytes or a deleted key", async (t) => {
  const broker = new FakeBroker();
  broker.publish("kinds", { headers: {}, text: "hello" }, { headers: { a: "b" }, json: { n: 1 } },
    { headers: {}, base64: "AP8=", key_base64: "/w==" }, { headers: {}, key: "k", deleted: true });
  const client = clientOf(t, broker);
  const subscription = client.subscribe("kinds", { start: "earliest" });
  const messages = [];
  while (messages.length < 4) messages.push((await subscription.next()).value);
  const [text, json, bytes, deleted] = messages;
  assert.equal(text.value, "hello");
  assert.deepEqual([json.value, json.headers], [{ n: 1 }, { a: "b" }]);
  assert.deepEqual([...bytes.value, ...bytes.key], [0, 255, 255]);
  assert.deepEqual([deleted.value, deleted.key, deleted.deleted], [null, "k", true]);
});

test("a page publishes text, JSON and bytes, and learns where they are", async (t) => {
  const broker = new FakeBroker();
  const client = clientOf(t, broker);
  assert.equal((await client.publish("p", "text", { key: "k", headers: { a: "b" } })).offset, 0);
  assert.equal((await client.publish("p", { a: 1 })).offset, 1);
  assert.equal((await client.publish("p", new Uint8Array([0, 255]))).offset, 2);
  const many = await client.publishMany("p", [{ value: 1 }, { value: 2, key: "x" }]);
  assert.deepEqual(many.map((one) => one.offset), [3, 4]);
  const records = broker.topic("p").records;
  assert.deepEqual([records[0].text, records[0].key, records[0].headers], ["text", "k", { a: "b" }]);
  assert.deepEqual([records[1].json, records[2].base64, records[4].key], [{ a: 1 }, "AP8=", "x"]);
  await assert.rejects(client.publish("p", undefined), { code: "invalid_argument" });
});

test("requests, presence and history are answered", async (t) => {
  const broker = new FakeBroker();
  broker.publish("chat", 1, 2, 3, 4);
  const client = clientOf(t, broker);
  assert.deepEqual((await client.request("sums", [1, 2])).value, { echo: [1, 2] });
  assert.equal((await client.presence("chat")).users[0].user, "ann");
  const { messages } = await client.history("chat", { before: 3, limit: 2 });
  assert.deepEqual(messages.map((m) => [m.topic, m.value]), [["chat", 2], ["chat", 3]]);
});

test("a new connection continues where the last one ended", async (t) => {
  const broker = new FakeBroker();
  const client = clientOf(t, broker);
  const subscription = client.subscribe("chat");
  await subscription.ready; // a position, before the first message
  broker.cut();
  broker.publish("chat", 1, 2);
  assert.deepEqual(await take(subscription, 2), [1, 2]);
  for (let round = 0; round < 50; round += 1) {
    broker.publish("chat", `${round} before`);
    broker.cut();
    broker.publish("chat", `${round} after`);
    assert.deepEqual(await take(subscription, 2), [`${round} before`, `${round} after`]);
  }
});

test("messages that come twice are shown once", async (t) => {
  const broker = new FakeBroker();
  broker.repeat = 3;
  const client = clientOf(t, broker);
  const subscription = client.subscribe("chat", { start: "earliest" });
  broker.publish("chat", 1, 2, 3);
  assert.deepEqual(await take(subscription, 3), [1, 2, 3]);
  broker.cut();
  broker.publish("chat", 4);
  assert.deepEqual(await take(subscription, 1), [4]);
});

test("a topic that was made again counts from 0 again", async (t) => {
  const broker = new FakeBroker();
  const client = clientOf(t, broker);
  const subscription = client.subscribe("chat", { start: "earliest" });
  broker.publish("chat", 1, 2, 3);
  assert.deepEqual(await take(subscription, 3), [1, 2, 3]);
  broker.topics.delete("chat");
  broker.publish("chat", "new");
  assert.deepEqual(await take(subscription, 1), ["new"]);
});

test("lost messages are an explicit gap, in its place", async (t) => {
  const broker = new FakeBroker();
  const client = clientOf(t, broker);
  const subscription = client.subscribe("chat");
  const gaps = [];
  client.addEventListener("gap", (event) => gaps.push(event.detail));
  await subscription.ready;
  broker.publish("chat", 1);
  await take(subscription, 1);
  broker.cut();
  broker.publish("chat", 2, 3, 4);
  broker.forget("chat", 3);
  const { value: message } = await subscription.next();
  assert.equal(message.value, 4);
  const expected = { topic: "chat", partition: 0, from: "1.1.1", to: "3.1.1", reason: "retention" };
  assert.deepEqual(message.gap, expected);
  assert.deepEqual(gaps, [{ target: "chat", ...expected }]);
});

test("positions in the session's storage survive a reload, to the message", async (t) => {
  const broker = new FakeBroker();
  const storage = memoryStorage();
  broker.publish("chat", 1, 2, 3);
  const options = { start: "earliest", store: "session" };
  const first = clientOf(t, broker, { storage });
  const before = first.subscribe("chat", options);
  assert.deepEqual(await take(before, 2), [1, 2]);
  await new Promise((resolve) => setImmediate(resolve));
  first.close(); // while the page worked on 2: it comes again
  const second = clientOf(t, broker, { storage });
  const after = second.subscribe("chat", options);
  assert.deepEqual(await take(after, 2), [2, 3]);
  broker.publish("chat", 4);
  assert.deepEqual(await take(after, 1), [4]);
});

test("a storage that is full or forbidden is no fault", async (t) => {
  const broker = new FakeBroker();
  const fail = () => { throw new Error("QuotaExceededError"); };
  const client = clientOf(t, broker, { storage: { getItem: fail, setItem: fail } });
  const subscription = client.subscribe("chat", { store: "session" });
  await subscription.ready;
  broker.publish("chat", 1);
  assert.deepEqual(await take(subscription, 1), [1]);
});

test("what is published while offline is sent once, in order", async (t) => {
  const broker = new FakeBroker();
  broker.refuse.add("websocket").add("http");
  const client = clientOf(t, broker);
  const published = [1, 2, 3].map((n) => client.publish("chat", n));
  await until(() => client.state === "reconnecting");
  assert.equal(client.pending, 3);
  broker.refuse.clear();
  await Promise.all(published);
  assert.deepEqual(broker.topic("chat").records.map((r) => r.json), [1, 2, 3]);
});

test("a publish whose acknowledgement was lost is not published twice", async (t) => {
  const broker = new FakeBroker();
  const client = clientOf(t, broker);
  await client.publish("chat", 0);
  const hear = broker.hear.bind(broker);
  broker.hear = (socket, frame) => {
    hear({ say() {} }, frame); // it arrives, and the answer does not
    broker.hear = hear;
    broker.cut();
  };
  assert.equal((await client.publish("chat", 1)).offset, 1);
  assert.deepEqual(broker.topic("chat").records.map((r) => r.json), [0, 1]);
});

test("a request that may have happened is not repeated", async (t) => {
  const broker = new FakeBroker();
  const client = clientOf(t, broker);
  broker.swallow.add("request");
  const answer = client.request("sums", [1]);
  await until(() => broker.ops.some((o) => o.op === "request"));
  broker.cut();
  await assert.rejects(answer, { code: "connection_lost" });
  await until(() => client.state === "open");
  assert.equal(broker.ops.filter((o) => o.op === "request").length, 1);
});

test("the queue of operations has a limit", async (t) => {
  const broker = new FakeBroker();
  broker.refuse.add("websocket").add("http");
  const client = clientOf(t, broker, { pendingMax: 2 });
  const waiting = [client.publish("chat", 1), client.publish("chat", 2)];
  await assert.rejects(client.publish("chat", 3), { code: "overloaded" });
  await assert.rejects(client.publish("chat", 3, { queue: false }), { code: "connection_lost" });
  client.close();
  for (const one of waiting) await assert.rejects(one, { code: "closed" });
  await assert.rejects(client.publish("chat", 1), { code: "closed" });
});

test("a slow page stops its subscription at the server and misses nothing", async (t) => {
  const broker = new FakeBroker();
  const client = clientOf(t, broker, { bufferMax: 10 });
  const subscription = client.subscribe("chat");
  const events = [];
  for (const type of ["pause", "resume"]) subscription.addEventListener(type, () => events.push(type));
  await subscription.ready;
  for (let i = 0; i < 100; i += 1) broker.publish("chat", i);
  await until(() => events.length === 1);
  await until(() => broker.ops.some((o) => o.op === "unsubscribe"));
  const values = await take(subscription, 100);
  assert.deepEqual(values, Array.from({ length: 100 }, (_, i) => i));
  broker.publish("chat", "live");
  assert.deepEqual(await take(subscription, 1), ["live"]);
  assert.ok(events.includes("resume"));
});

test("a slow page that wants the newest gets a gap and goes on", async (t) => {
  const broker = new FakeBroker();
  const client = clientOf(t, broker, { bufferMax: 10 });
  const gaps = [];
  client.addEventListener("gap", ({ detail }) => gaps.push([detail.from, detail.to, detail.reason]));
  const subscription = client.subscribe("chat", { policy: "skip" });
  await subscription.ready;
  assert.equal(broker.ops[0].policy, "skip");
  for (let i = 0; i < 25; i += 1) broker.publish("chat", i);
  await until(() => gaps.length === 2);
  assert.deepEqual(gaps, [["0.1.1", "10.1.1", "skipped"], ["10.1.1", "20.1.1", "skipped"]]);
  const { value: message } = await subscription.next();
  assert.deepEqual([message.value, message.gap.from, message.gap.to], [20, "0.1.1", "20.1.1"]);
  assert.deepEqual(await take(subscription, 4), [21, 22, 23, 24]);
  broker.cut();
  broker.publish("chat", "live");
  assert.deepEqual(await take(subscription, 1), ["live"]);
});

test("a page can show the state of the connection", async (t) => {
  const broker = new FakeBroker();
  t.mock.method(Math, "random", () => 0.5);
  const client = clientOf(t, broker, { backoffMinMs: 60_000, backoffMaxMs: 60_000 });
  const states = [];
  client.addEventListener("statechange", ({ detail }) => states.push([detail.state, detail.nextAttempt !== null]));
  assert.equal(client.state, "connecting");
  await until(() => client.state === "open");
  assert.deepEqual([client.transport, client.process, client.bus], ["websocket", "p1", "fanlog"]);
  for (const socket of broker.sockets) socket.say({ type: "upstream", up: false });
  await until(() => client.state === "upstream-lost");
  for (const socket of broker.sockets) socket.say({ type: "upstream", up: true });
  await until(() => client.state === "open");
  broker.cut();
  await until(() => client.state === "reconnecting" && client.nextAttempt !== null);
  client.reconnect(); // "Try now"
  await until(() => client.state === "open");
  client.close();
  assert.deepEqual(states, [["open", false], ["upstream-lost", false], ["open", false],
    ["reconnecting", true], ["open", false], ["closed", false]]);
  assert.throws(() => client.subscribe("chat"), { code: "closed" });
});

test("delays have full jitter, grow, and have a limit", async (t) => {
  t.mock.timers.enable({ apis: ["setTimeout", "Date"] });
  t.mock.method(Math, "random", () => 0.5);
  const broker = new FakeBroker();
  broker.refuse.add("websocket");
  const client = clientOf(t, broker,
    { backoffMinMs: 400, backoffMaxMs: 1_600, transports: ["websocket"] });
  const delays = [];
  while (delays.length < 5) {
    await turns();
    delays.push(client.nextAttempt - Date.now());
    t.mock.timers.tick(delays.at(-1));
  }
  assert.deepEqual(delays, [200, 400, 800, 800, 800]);
});

test("a server that breaks each connection at once is not stormed", async (t) => {
  t.mock.timers.enable({ apis: ["setTimeout", "Date"] });
  t.mock.method(Math, "random", () => 0.5);
  const broker = new FakeBroker();
  const client = clientOf(t, broker, { backoffMinMs: 400, backoffMaxMs: 1_600 });
  const delays = [];
  while (delays.length < 4) {
    await turns();
    if (delays.length === 3) t.mock.timers.tick(6_000); // long enough to trust it again
    broker.cut();
    await turns();
    delays.push(client.nextAttempt - Date.now());
    t.mock.timers.tick(delays.at(-1));
  }
  assert.deepEqual(delays, [200, 400, 800, 200]);
});

test("several servers are tried in turn", async (t) => {
  const broker = new FakeBroker();
  const client = clientOf(t, broker, {}, [URL_A, URL_B]);
  const subscription = client.subscribe("chat");
  await subscription.ready;
  broker.cut();
  broker.publish("chat", 1);
  assert.deepEqual(await take(subscription, 1), [1]);
  assert.deepEqual(broker.urls, ["ws://a.test/v1/ws", "ws://b.test/v1/ws"]);
});

test("a draining server says when to come back", async (t) => {
  const broker = new FakeBroker();
  const client = clientOf(t, broker, { backoffMinMs: 60_000, backoffMaxMs: 60_000 }, [URL_A, URL_B]);
  await until(() => client.state === "open");
  for (const socket of [...broker.sockets]) {
    socket.say({ type: "reconnect", after_ms: 20, reason: "draining" });
    queueMicrotask(() => queueMicrotask(() => socket.fail(1012)));
  }
  await until(() => client.state === "reconnecting");
  await until(() => client.state === "open");
  assert.equal(client.url, "http://b.test/");
});

test("a connection that is half open is found by a ping", async (t) => {
  t.mock.timers.enable({ apis: ["setTimeout", "Date"] });
  const broker = new FakeBroker();
  const client = clientOf(t, broker);
  await turns();
  assert.equal(client.state, "open");
  t.mock.timers.tick(25_000);
  await turns();
  assert.equal(broker.ops.at(-1).op, "ping");
  assert.equal(client.state, "open");
  broker.swallow.add("ping");
  t.mock.timers.tick(25_000);
  t.mock.timers.tick(10_000);
  await turns();
  assert.equal(client.state, "reconnecting");
});

test("where WebSocket is blocked, SSE and POST take over", async (t) => {
  const broker = new FakeBroker();
  broker.refuse.add("websocket");
  broker.publish("chat", 1, 2);
  const client = clientOf(t, broker);
  const chat = client.subscribe("chat", { last: 1 });
  const news = client.subscribe("news");
  await news.ready;
  assert.equal(client.transport, "sse");
  await client.publish("chat", { headers: {}, a: 1 });
  const { value: first } = await chat.next();
  const { value: second } = await chat.next();
  assert.deepEqual([first.value, second.value.a], [2, 1]);
  broker.cut();
  broker.publish("chat", 4);
  broker.publish("news", "n");
  assert.deepEqual(await take(chat, 1), [4]);
  assert.deepEqual(await take(news, 1), ["n"]);
});

test("subscriptions share a stream of events, and keep their positions", async (t) => {
  const broker = new FakeBroker();
  const client = clientOf(t, broker, { transports: ["sse"] });
  const topics = Array.from({ length: 12 }, (_, i) => `room.${i}`);
  const rooms = topics.map((topic) => client.subscribe(topic));
  await Promise.all(rooms.map((room) => room.ready));
  assert.equal(broker.streams.size, 1);
  for (const topic of topics) broker.publish(topic, topic);
  for (const [i, room] of rooms.entries()) assert.deepEqual(await take(room, 1), [topics[i]]);
  const late = client.subscribe("room.late", { last: 1 }); // another start, so a stream of its own
  await late.ready;
  await until(() => broker.streams.size === 1);
  broker.publish("room.late", "late");
  assert.deepEqual(await take(late, 1), ["late"]);
  rooms.slice(1).forEach((room) => room.close());
  broker.publish("room.0", "still");
  assert.deepEqual(await take(rooms[0], 1), ["still"]);
});

test("the user's own topic gets nothing of the others", async (t) => {
  const broker = new FakeBroker();
  const client = clientOf(t, broker, { transports: ["sse"], user: "ann" });
  const seen = [];
  const own = client.subscribe("$user", {}, (message) => seen.push(message.value));
  const news = client.subscribe("news");
  await Promise.all([own.ready, news.ready]);
  broker.publish("news", "for all");
  broker.publish("$user", "for ann"); // the fake broker knows no other name for it
  assert.deepEqual(await take(news, 1), ["for all"]);
  await until(() => seen.length > 0);
  assert.deepEqual(seen, ["for ann"]);
});

test("one topic that is refused does not stop the others", async (t) => {
  const broker = new FakeBroker();
  const client = clientOf(t, broker, { transports: ["sse"] });
  const good = client.subscribe("good");
  const bad = client.subscribe("forbidden");
  await assert.rejects(bad.ready, { code: "forbidden" });
  await assert.rejects(bad.next(), FanlogError);
  await good.ready;
  broker.publish("good", 1);
  assert.deepEqual(await take(good, 1), [1]);
});

test("WebSocket takes over again when it is no longer blocked", async (t) => {
  const broker = new FakeBroker();
  broker.refuse.add("websocket");
  const client = clientOf(t, broker, { upgradeMs: 10 });
  const subscription = client.subscribe("chat");
  await subscription.ready;
  broker.publish("chat", 1);
  assert.deepEqual(await take(subscription, 1), [1]);
  broker.refuse.clear();
  await until(() => client.transport === "websocket");
  broker.publish("chat", 2);
  assert.deepEqual(await take(subscription, 1), [2]);
  assert.equal(broker.streams.size, 0);
});

test("a server that is down is not mistaken for a blocked WebSocket", async (t) => {
  const broker = new FakeBroker();
  const client = clientOf(t, broker);
  await until(() => client.state === "open");
  broker.refuse.add("websocket");
  broker.cut();
  await until(() => broker.urls.length >= 2);
  broker.refuse.clear();
  await until(() => client.state === "open");
  assert.equal(client.transport, "websocket");
});

test("a stream is read from its start to its end", async (t) => {
  const broker = new FakeBroker();
  const mark = (kind, more = {}) => ({ headers: { "fanlog-stream": kind, ...more }, text: "" });
  broker.publish("_stream.answer", { headers: {}, text: "Hello" }, mark("alive"), { headers: {}, text: " world" });
  const client = clientOf(t, broker);
  const words = [];
  for await (const { value } of client.stream("answer")) {
    words.push(value);
    if (words.length === 2) {
      broker.cut();
      broker.publish("_stream.answer", { headers: {}, text: "!" }, mark("end"));
    }
  }
  assert.deepEqual(words, ["Hello", " world", "!"]);
  broker.publish("_stream.failed", mark("end", { "fanlog-error": "The model is away." }));
  await assert.rejects(client.stream("failed").next(), { code: "stream_failed", message: "The model is away." });
});

test("presence follows joins and leaves", async (t) => {
  const broker = new FakeBroker();
  const client = clientOf(t, broker, { user: "ann" });
  const room = client.subscribe("chat", { presence: { name: "Ann" } });
  await until(() => room.users.length === 1);
  const say = (frame) => { for (const socket of broker.sockets) socket.say({ type: "presence", topic: "chat", ...frame }); };
  say({ joined: [{ user: "bob", info: { name: "Bob" } }], left: [], count: 2 });
  await until(() => room.count === 2);
  assert.deepEqual(room.users.map((one) => one.user), ["ann", "bob"]);
  say({ joined: [], left: [{ user: "ann" }], count: 1 });
  await until(() => room.count === 1);
  assert.deepEqual(room.users.map((one) => one.user), ["bob"]);
  assert.ok(broker.urls[0].includes("user=ann"));
});

test("a snapshot that breaks off starts again", async (t) => {
  const broker = new FakeBroker();
  const client = clientOf(t, broker);
  broker.hear = function hear(socket, { id, op, ...rest }) {
    this.ops.push({ op, ...rest });
    socket.say({ id, ok: { target: "prices", positions: { "prices/0": "9.1.1" } } });
    const frame = { target: "prices", topic: "prices", partition: 0, position: "9.1.1" };
    const record = (offset) => ({ offset, key: `k${offset}`, json: offset });
    socket.say({ ...frame, type: "snapshot", more: true, messages: [record(2)] });
    if (this.ops.length === 1) return queueMicrotask(() => queueMicrotask(() => this.cut()));
    socket.say({ ...frame, type: "snapshot", more: false, messages: [record(8)] });
    socket.say({ ...frame, type: "messages", position: "10.1.1", messages: [record(9)] });
  };
  const prices = client.subscribe("prices", { latest: true });
  const seen = [];
  while (seen.length < 4) {
    const { value } = await prices.next();
    seen.push([value.value, value.snapshot ?? false]);
  }
  assert.deepEqual(seen, [[2, true], [2, true], [8, true], [9, false]]);
  assert.equal(broker.ops[1].positions, undefined);
  assert.deepEqual(prices.positions, { "prices/0": "10.1.1" });
});

test("the same target twice is refused with advice", async (t) => {
  const client = clientOf(t, new FakeBroker());
  const first = client.subscribe("chat");
  assert.throws(() => client.subscribe("chat"), /close it first/);
  client.subscribe("chat", { filter: { key: "a*" } });
  first.close();
  await client.subscribe("chat").ready;
});

test("a subscription that is closed and made again starts anew", async (t) => {
  const broker = new FakeBroker();
  const client = clientOf(t, broker);
  const first = client.subscribe("chat");
  await first.ready;
  broker.publish("chat", "for the first");
  first.close();
  const second = client.subscribe("chat");
  await second.ready;
  broker.publish("chat", "for the second");
  assert.deepEqual(await take(second, 1), ["for the second"]);
});
