// A broker in the same process, as far as a browser sees one: /v1/ws, /v1/stream and POST. Each
// topic has one partition. Tests break its connections, block WebSocket, and let it lie.

const EPOCH = 1;

export class FakeBroker {
  topics = new Map(); // name -> { number, records, first }
  dedupes = new Map(); // id -> what was published
  sockets = new Set();
  streams = new Set();
  ops = []; // all that clients asked over WebSocket
  urls = []; // of the connections
  refuse = new Set(); // "websocket", "http": connections that fail
  swallow = new Set(); // "publish", "ping", …: operations without an answer
  welcome = {};
  repeat = 0; // records that a recovery repeats, which a correct server never does
  #numbers = 0;

  constructor() {
    const broker = this;
    this.WebSocket = class {
      readyState = 0;
      constructor(url, protocols) {
        this.subscriptions = new Map();
        broker.urls.push(url);
        queueMicrotask(() => {
          if (broker.refuse.has("websocket")) return this.fail(1006);
          this.protocol = protocols[0];
          this.readyState = 1;
          broker.sockets.add(this);
          this.say({ type: "welcome", version: 1, connection: "c1", process: "p1", ping_seconds: 25,
            bus: "fanlog", up: true, ...broker.welcome });
        });
      }
      say(frame) {
        const data = JSON.stringify(frame);
        queueMicrotask(() => this.readyState === 1 && this.onmessage?.({ data }));
      }
      send(data) {
        broker.hear(this, JSON.parse(data));
      }
      close() {
        this.readyState = 3;
        broker.sockets.delete(this);
      }
      fail(code = 1006, reason = "") {
        this.readyState = 3;
        broker.sockets.delete(this);
        queueMicrotask(() => this.onclose?.({ code, reason }));
      }
    };
    this.fetch = (url, init) => this.answer(new URL(url), init);
  }

  get options() {
    return { WebSocket: this.WebSocket, fetch: this.fetch, backoffMinMs: 2, backoffMaxMs: 8 };
  }

  topic(name) {
    if (!this.topics.has(name)) this.topics.set(name, { number: ++this.#numbers, records: [], first: 0 });
    return this.topics.get(name);
  }

  position(name, offset) {
    return `${offset}.${EPOCH}.${this.topic(name).number}`;
  }

  /** Publishes, and sends to whoever follows. */
  publish(name, ...values) {
    const topic = this.topic(name);
    const from = topic.first + topic.records.length;
    for (const value of values) {
      const body = value !== null && typeof value === "object" && "headers" in value ? value : { json: value };
      topic.records.push({ offset: topic.first + topic.records.length, time: "2026-01-01T00:00:00Z", ...body });
    }
    for (const socket of this.sockets) {
      if (socket.subscriptions.has(name)) this.#deliver(socket, name, from);
    }
    for (const stream of this.streams) {
      if (stream.names.includes(name)) this.#stream(stream, name, from);
    }
    return from;
  }

  /** Forgets the oldest records, as retention does. */
  forget(name, count) {
    const topic = this.topic(name);
    topic.first += topic.records.splice(0, count).length;
  }

  cut(code) {
    for (const socket of [...this.sockets]) socket.fail(code);
    for (const stream of [...this.streams]) {
      this.streams.delete(stream);
      stream.controller.error(new Error("cut"));
    }
  }

  hear(socket, { id, op, ...rest }) {
    this.ops.push({ op, ...rest });
    if (this.swallow.has(op)) return;
    const ok = (body) => socket.say({ id, ok: body });
    if (op === "subscribe") return this.#subscribe(socket, ok, rest);
    if (op === "unsubscribe") {
      socket.subscriptions.delete(rest.target);
      return ok({});
    }
    if (op === "publish") return ok(this.#published(rest));
    if (op === "request") return ok({ json: { echo: rest.json } });
    if (op === "presence") return ok({ topic: rest.topic, count: 1, users: [{ user: "ann", connections: 1 }] });
    if (op === "history") return ok(this.#history(rest));
    if (op === "forbidden") return socket.say({ id, error: { code: "forbidden", message: "No." } });
    return ok({});
  }

  #subscribe(socket, ok, { target, start, positions }) {
    const from = this.#begin(target, start, positions);
    ok({ target, positions: { [`${target}/0`]: this.position(target, from.offset) } });
    socket.subscriptions.set(target, true);
    if (from.gap) socket.say({ type: "gap", target, topic: target, partition: 0, ...from.gap });
    this.#deliver(socket, target, from.offset);
  }

  #begin(name, start, positions) {
    const topic = this.topic(name);
    const end = topic.first + topic.records.length;
    const position = positions?.[`${name}/0`];
    if (position) {
      const wanted = Math.max(Number.parseInt(position, 10) - this.repeat, 0);
      if (wanted >= topic.first) return { offset: wanted };
      const gap = { from: position, to: this.position(name, topic.first), reason: "retention" };
      return { offset: topic.first, gap };
    }
    if (start === "earliest") return { offset: topic.first };
    if (start?.last !== undefined) return { offset: Math.max(end - start.last, topic.first) };
    if (start?.offset !== undefined) return { offset: start.offset };
    return { offset: end };
  }

  #deliver(socket, name, from) {
    const topic = this.topic(name);
    const messages = topic.records.slice(from - topic.first);
    if (messages.length === 0) return;
    const position = this.position(name, topic.first + topic.records.length);
    socket.say({ type: "messages", target: name, topic: name, partition: 0, position, messages });
  }

  #published({ topic, dedupe, messages, ...body }) {
    if (this.dedupes.has(dedupe)) return this.dedupes.get(dedupe);
    const from = this.publish(topic, ...(messages ?? [body]).map((m) => ({ headers: {}, ...m })));
    const published = (messages ?? [body]).map((_, i) => ({ topic, partition: 0, offset: from + i }));
    this.dedupes.set(dedupe, { published });
    return { published };
  }

  #history({ topic, before, limit }) {
    const { records, first } = this.topic(topic);
    const end = (before === undefined ? first + records.length : Number.parseInt(before, 10)) - first;
    return { messages: records.slice(Math.max(end - limit, 0), end), positions: {} };
  }

  // --- HTTP ----------------------------------------------------------------------------------

  async answer(url, init) {
    this.urls.push(url.href);
    if (this.refuse.has("http")) throw new TypeError("fetch failed");
    const path = url.pathname;
    if (path === "/v1/status") return Response.json({ up: true });
    if (path === "/v1/stream") return this.#openStream(url, init);
    const topic = decodeURIComponent(path.split("/")[3]);
    if (init.method === "POST" && path.endsWith("/messages")) {
      const dedupe = init.headers["Idempotency-Key"];
      return Response.json(this.#published({ topic, dedupe, ...JSON.parse(init.body) }));
    }
    const problem = { title: "Not Found", status: 404, detail: "Nothing here.", code: "no_such_path" };
    return Response.json(problem, { status: 404 });
  }

  #openStream(url, init) {
    const query = url.searchParams;
    const names = query.getAll("topic");
    if (names.includes("forbidden")) {
      return Response.json({ status: 403, detail: "Not for you.", code: "forbidden" }, { status: 403 });
    }
    const positions = JSON.parse(query.get("positions") ?? "{}");
    const last = query.get("last");
    const start = last === null ? query.get("start") : { last: Number(last) };
    const stream = { names, reached: {}, encoder: new TextEncoder() };
    const body = new ReadableStream({ start: (controller) => { stream.controller = controller; } });
    for (const name of names) stream.reached[name] = this.#begin(name, start, positions).offset;
    const at = names.map((name) => [`${name}/0`, this.position(name, stream.reached[name])]);
    const begin = JSON.stringify({ targets: names, positions: Object.fromEntries(at) });
    stream.controller.enqueue(stream.encoder.encode(`retry: 1000\nevent: subscribed\ndata: ${begin}\n\n`));
    for (const name of names) this.#stream(stream, name, stream.reached[name]);
    this.streams.add(stream);
    init.signal?.addEventListener("abort", () => {
      if (this.streams.delete(stream)) stream.controller.close();
    });
    return new Response(body, { headers: { "Content-Type": "text/event-stream" } });
  }

  #stream(stream, name, from) {
    const topic = this.topic(name);
    for (const record of topic.records.slice(from - topic.first)) {
      stream.reached[name] = record.offset + 1;
      const entries = stream.names.map((n) => `${n}:${this.topic(n).number}:0.${stream.reached[n]}.${EPOCH}`);
      const id = stream.names.length === 1 ? this.position(name, record.offset + 1) : entries.join(";");
      const data = JSON.stringify({ topic: name, partition: 0, ...record });
      stream.controller.enqueue(stream.encoder.encode(`id: ${id}\ndata: ${data}\n\n`));
    }
  }
}
