// The browser client of Fanlog: one ES module, no dependencies. Types: fanlog.d.ts.
//
// Laws:
// - Every subscription keeps a position for each topic partition. A new connection continues there:
//   no message is missed or repeated, or the page gets one explicit `gap`.
// - Every publish carries a dedupe id until it is acknowledged, so a retry is exactly once.
// - Every buffer has a limit. A slow reader stops its subscription at the server, and later
//   continues at its position. Nothing is dropped silently.

export const VERSION = "0.1.0";

const DEFAULTS = {
  transports: ["websocket", "sse"],
  backoffMinMs: 500, // the first retry comes within this time
  backoffMaxMs: 20_000, // later ones within this time
  stableMs: 5_000, // after so long a connection counts as a success
  connectTimeoutMs: 6_000, // a proxy may swallow a WebSocket without an answer
  pingMs: 25_000, // until the server says its own
  pongTimeoutMs: 10_000,
  wakeTimeoutMs: 4_000, // a person is looking at the page: decide faster
  upgradeMs: 60_000, // on SSE: time until the next try of WebSocket, doubled up to 16 times
  pendingMax: 1_000, // operations without an answer
  pendingBytesMax: 4 * 1024 * 1024,
  bufferMax: 1_000, // messages of one subscription that the page has not taken
  requestTimeoutMs: 30_000,
  storageKey: "fanlog",
};

// The operation was right, the moment was wrong: try again later.
const TEMPORARY = new Set([
  "overloaded", "too_many_connections", "link", "connect", "connection_lost", "timeout", "draining",
  "closed", "out_of_resources",
]);

const SAVE_MS = 100; // sessionStorage writes block the page, so there are at most ten a second
const OWN_USER = "$user"; // the topic of the connection's own user
const STREAM_PREFIX = "_stream."; // before the names of streams: each is a topic
const STREAM_MARK = "fanlog-stream"; // a header of what is no part of a stream's text
const LOGGED_OUT = 4003; // the server closed: not logged in, or not any more
const LOGINS_MAX = 2; // tokens in a row that the server refused, from a function that makes new ones
const WEBSOCKET_FAILURES_MAX = 3; // where WebSocket worked before, the server is down, not blocked

/** An error with the stable code of the server's error, or one of this client's own. */
export class FanlogError extends Error {
  constructor(code, message, detail = {}) {
    super(message);
    this.name = "FanlogError";
    this.code = code;
    this.detail = detail;
  }

  get temporary() {
    return TEMPORARY.has(this.code);
  }
}

/**
 * Connects to Fanlog, and stays connected until `close()`.
 *
 *     const client = connect();
 *     for await (const message of client.subscribe("chat.lobby", { last: 50 })) show(message.value);
 */
export function connect(url, options) {
  if (url !== null && typeof url === "object" && !Array.isArray(url) && !(url instanceof URL)) {
    return new Client(undefined, url);
  }
  return new Client(url, options);
}

export class Client extends EventTarget {
  #options;
  #urls;
  #urlIndex = 0;
  #state = "connecting";
  #nextAttempt = null;
  #transport = null; // the one in use
  #candidate = null; // the one being opened
  #welcome = {};
  #failures = 0;
  #openedAt = 0;
  #attemptTimer;
  #upgradeTimer;
  #upgrades = 0;
  #resendTimer;
  #subscriptions = new Map(); // target and filter -> Subscription
  #operations = new Map(); // id -> operation, in the order of the calls
  #pendingBytes = 0;
  #lastId = 0;
  #name = randomText();
  #listeners = [];
  #login; // the token, as it was made last
  #refusals = 0; // logins in a row that the server refused

  constructor(url, options = {}) {
    super();
    this.#options = { ...DEFAULTS, ...options };
    this.#login = this.#options.login = new Login(this.#options.token);
    this.#urls = (Array.isArray(url) ? url : [url]).map(toUrl).map((base) => ({
      base, worked: false, failed: 0, blockedUntil: 0,
    }));
    if (this.#urls.length === 0) throw new FanlogError("invalid_argument", "Give at least one URL.");
    this.#listen();
    this.#open();
  }

  /** "connecting", "open", "reconnecting", "offline", "upstream-lost" or "closed". */
  get state() { return this.#state; }
  /** When the next attempt to connect starts (ms since 1970), or null. */
  get nextAttempt() { return this.#nextAttempt; }
  /** "websocket", "sse", or null while there is no connection. */
  get transport() { return this.#transport?.kind ?? null; }
  /** The server in use, or the one that is tried next. */
  get url() { return this.#urls[this.#urlIndex].base.href; }
  get connection() { return this.#welcome.connection ?? null; }
  get process() { return this.#welcome.process ?? null; }
  get user() { return this.#welcome.user ?? this.#options.user ?? null; }
  get bus() { return this.#welcome.bus ?? null; }
  /** Operations without an answer, those made while offline among them. */
  get pending() { return this.#operations.size; }

  /** Follows a topic or a pattern. Iterate over what it returns, or give a callback. */
  subscribe(target, options = {}, callback) {
    if (typeof options === "function") [options, callback] = [{}, options];
    this.#check();
    const key = subscriptionKey(target, options.filter);
    if (this.#subscriptions.has(key)) {
      throw new FanlogError("invalid_argument",
        `This client follows ${target} already: use that subscription, or close it first.`);
    }
    const subscription = new Subscription({
      key, target, callback,
      options: { bufferMax: this.#options.bufferMax, ...options },
      storage: this.#storageOf(options.store),
      storageKey: `${this.#options.storageKey}:${this.#urls[0].base.href}:${key}`,
      start: () => this.#transport?.subscribe(subscription),
      stop: () => this.#transport?.unsubscribe(subscription),
      forget: () => {
        if (this.#subscriptions.get(key) === subscription) this.#subscriptions.delete(key);
      },
      presence: () => this.presence(target),
      tell: (type, detail) => this.#tell(type, detail),
    });
    this.#subscriptions.set(key, subscription);
    this.#transport?.subscribe(subscription);
    return subscription;
  }

  /** Reads a resumable stream from its start, or from where this tab was, to its end. */
  stream(name, options = {}) {
    return this.subscribe(STREAM_PREFIX + name, { start: "earliest", missing: "wait", ...options, stream: true });
  }

  /** Publishes one message. Resolves when the server has stored it, exactly once. */
  async publish(topic, value, { key, headers, dedupe, queue, timeoutMs } = {}) {
    const message = toOutgoing(value, key, headers);
    const ok = await this.#call("publish", { topic, ...message, dedupe: dedupe ?? this.#dedupe() },
      { retry: true, queue, timeoutMs });
    return ok.published[0];
  }

  /** Publishes several messages in order: `[{ value, key?, headers? }]`. */
  async publishMany(topic, messages, { dedupe, queue, timeoutMs } = {}) {
    const outgoing = messages.map((m) => toOutgoing(m.value, m.key, m.headers));
    const ok = await this.#call(
      "publish", { topic, messages: outgoing, dedupe: dedupe ?? this.#dedupe() },
      { retry: true, queue, timeoutMs });
    return ok.published;
  }

  /** Sends a request and resolves with the answer. Never sent twice. */
  async request(topic, value, { key, headers, timeoutMs } = {}) {
    timeoutMs ??= this.#options.requestTimeoutMs;
    const body = { topic, ...toOutgoing(value, key, headers), timeout_seconds: timeoutMs / 1000 };
    return toMessage(await this.#call("request", body, { retry: false, timeoutMs }), topic, 0);
  }

  /** Who follows this topic now: `{ topic, count, users }`. */
  presence(topic) {
    return this.#call("presence", { topic }, { retry: true, timeoutMs: this.#options.requestTimeoutMs });
  }

  /** Older messages, oldest first, and what to give as `before` for still older ones. */
  async history(topic, { partition, before, limit = 50 } = {}) {
    const body = { topic, partition, before, limit };
    const ok = await this.#call("history", body,
      { retry: true, timeoutMs: this.#options.requestTimeoutMs });
    return {
      messages: ok.messages.map((raw) => toMessage(raw, topic, partition ?? 0)),
      positions: ok.positions ?? {},
      before: ok.before ?? null,
    };
  }

  /** Shows a new token to the server, without a disconnect, and to each later connection. */
  async setToken(token) {
    this.#login.source = token;
    await this.#showToken();
  }

  /** A ticket for one EventSource or WebSocket of the page's own: `?ticket=…`. It is good once. */
  async ticket(use = "events") {
    const { ticket } = await send(this.#urls[this.#urlIndex].base, this.#options, "POST", "v1/tickets",
      { body: { use } });
    return ticket;
  }

  /** Tries to connect now instead of at `nextAttempt`. */
  reconnect() {
    if (this.#state === "closed" || this.#transport || this.#candidate) return;
    this.#open();
  }

  /** Closes the connection and ends all subscriptions. */
  close() {
    if (this.#state === "closed") return;
    this.#shut(new FanlogError("closed", "The client is closed: connect a new one."));
  }

  // --- the connection ------------------------------------------------------------------------

  #open() {
    clearTimeout(this.#attemptTimer);
    this.#nextAttempt = null;
    const url = this.#urls[this.#urlIndex];
    const kinds = this.#options.transports;
    const blocked = url.blockedUntil > Date.now() && kinds.includes("sse");
    this.#try(kinds.includes("websocket") && !blocked ? "websocket" : "sse");
    if (this.#state !== "connecting") this.#setState(isOffline() ? "offline" : "reconnecting");
  }

  #try(kind) {
    const url = this.#urls[this.#urlIndex];
    const Kind = kind === "websocket" ? SocketTransport : EventTransport;
    const transport = new Kind(url.base, this.#options, {
      opened: (welcome) => this.#opened(transport, url, welcome),
      lost: (reason) => this.#lost(transport, url, reason),
      frame: (frame) => this.#frame(transport, frame),
      answered: (id, ok, error) => this.#answered(id, ok, error),
    });
    this.#candidate = transport;
    transport.start();
  }

  #opened(transport, url, welcome) {
    if (transport !== this.#candidate) return transport.close();
    this.#candidate = null;
    if (this.#transport) { // a WebSocket takes over from SSE
      this.#transport.close();
      this.#dropUnrepeatable();
    }
    this.#transport = transport;
    this.#refusals = 0;
    this.#welcome = welcome;
    this.#openedAt = Date.now();
    if (transport.kind === "websocket") {
      Object.assign(url, { worked: true, failed: 0, blockedUntil: 0 });
      this.#upgrades = 0;
      clearTimeout(this.#upgradeTimer);
    } else {
      this.#planUpgrade();
    }
    this.#setState(welcome.up === false ? "upstream-lost" : "open");
    for (const subscription of this.#subscriptions.values()) {
      if (!subscription.paused) transport.subscribe(subscription);
    }
    for (const operation of this.#operations.values()) operation.sent = false;
    this.#resend();
  }

  #lost(transport, url, reason) {
    transport.close();
    if (transport === this.#candidate) {
      this.#candidate = null;
      if (this.#transport) return this.#planUpgrade(); // SSE works: only the upgrade failed
      if (transport.kind === "websocket" && this.#options.transports.includes("sse")) {
        url.failed += 1;
        if (!url.worked || url.failed >= WEBSOCKET_FAILURES_MAX) {
          url.failed = 0;
          return this.#try("sse");
        }
      }
    } else if (transport === this.#transport) {
      // A server that breaks each connection at once is as good as one that is down.
      if (Date.now() - this.#openedAt >= this.#options.stableMs) this.#failures = 0;
      this.#transport = null;
      clearTimeout(this.#upgradeTimer);
      this.#candidate?.close();
      this.#candidate = null;
      this.#dropUnrepeatable();
    } else {
      return;
    }
    if (reason.fatal) return this.#shut(reason.fatal);
    if (reason.unauthenticated && !this.#mayTryAgain()) {
      return this.#shut(new FanlogError("unauthenticated", reason.message));
    }
    this.#planAttempt(reason);
  }

  // A function may make a token that is good. The same token again is not.
  #mayTryAgain() {
    this.#refusals += 1;
    this.#login.forget();
    return this.#login.renewable && this.#refusals < LOGINS_MAX;
  }

  async #showToken() {
    this.#login.forget();
    const token = await this.#login.get();
    if (this.#transport?.kind === "sse") return this.#transport.renew();
    if (this.#transport) await this.#call("token", { token }, { retry: false });
  }

  #planAttempt(reason) {
    if (this.#urls.length > 1) this.#urlIndex = (this.#urlIndex + 1) % this.#urls.length;
    const { backoffMinMs, backoffMaxMs } = this.#options;
    // One round over all servers counts as one failure.
    const round = Math.floor(this.#failures / this.#urls.length);
    const limitMs = Math.min(backoffMaxMs, backoffMinMs * 2 ** Math.min(round, 30));
    this.#failures += 1;
    this.#attemptIn(reason.afterMs ?? Math.random() * limitMs, reason.message);
  }

  #attemptIn(delayMs, reason) {
    clearTimeout(this.#attemptTimer);
    this.#nextAttempt = Date.now() + delayMs;
    this.#attemptTimer = setTimeout(() => this.#open(), delayMs);
    this.#setState(isOffline() ? "offline" : "reconnecting", reason);
  }

  #planUpgrade() {
    clearTimeout(this.#upgradeTimer);
    if (!this.#options.transports.includes("websocket")) return;
    const delayMs = this.#options.upgradeMs * 2 ** Math.min(this.#upgrades, 4);
    this.#urls[this.#urlIndex].blockedUntil = Date.now() + delayMs;
    this.#upgradeTimer = setTimeout(() => {
      // A request in flight must not be lost by our own doing.
      if ([...this.#operations.values()].some((o) => o.sent && !o.retry)) return this.#planUpgrade();
      this.#upgrades += 1;
      this.#try("websocket");
    }, delayMs);
  }

  #listen() {
    const on = (target, type, act) => {
      if (typeof target?.addEventListener !== "function") return;
      target.addEventListener(type, act);
      this.#listeners.push(() => target.removeEventListener(type, act));
    };
    const { window, document } = globalThis;
    const wake = () => this.#wake(0);
    // Many tabs come back with the same network: they spread over one second.
    on(window, "online", () => this.#wake(1_000));
    on(window, "offline", () => this.#wake(0));
    on(window, "pageshow", (event) => event.persisted && wake());
    on(window, "pagehide", () => this.#save());
    on(document, "resume", wake);
    on(document, "freeze", () => this.#save());
    on(document, "visibilitychange", () => (document.hidden ? this.#save() : wake()));
  }

  #wake(spreadMs) {
    if (this.#state === "closed") return;
    if (this.#transport) return this.#transport.probe();
    if (this.#candidate) return;
    if (isOffline()) return this.#setState("offline");
    this.#attemptIn(Math.random() * spreadMs);
  }

  #save() {
    for (const subscription of this.#subscriptions.values()) subscription.save();
  }

  #shut(error) {
    clearTimeout(this.#attemptTimer);
    clearTimeout(this.#upgradeTimer);
    clearTimeout(this.#resendTimer);
    this.#save();
    for (const stop of this.#listeners.splice(0)) stop();
    this.#transport?.close();
    this.#candidate?.close();
    this.#transport = this.#candidate = null;
    this.#nextAttempt = null;
    for (const operation of [...this.#operations.values()]) this.#settle(operation, null, error);
    const cause = error.code === "closed" ? null : error;
    for (const subscription of [...this.#subscriptions.values()]) subscription.finish(cause);
    this.#setState("closed", error.message);
  }

  #setState(state, reason) {
    const previous = this.#state;
    // A new time of the next attempt is worth an event, too: pages count down to it.
    if (state === previous && this.#nextAttempt === null) return;
    this.#state = state;
    this.#tell("statechange", {
      state, previous, nextAttempt: this.#nextAttempt, transport: this.transport, reason,
    });
  }

  #tell(type, detail) {
    this.dispatchEvent(Object.assign(new Event(type), { detail }));
  }

  // --- operations ----------------------------------------------------------------------------

  #call(kind, body, { retry, queue = true, timeoutMs = 0 }) {
    return new Promise((resolve, reject) => {
      this.#check();
      if (!queue && !this.#transport) {
        throw new FanlogError("connection_lost", "There is no connection, and queue is false.");
      }
      const text = JSON.stringify(body);
      const full = this.#operations.size >= this.#options.pendingMax ||
        this.#pendingBytes + text.length > this.#options.pendingBytesMax;
      if (full) {
        throw new FanlogError("overloaded",
          "Too many operations wait for an answer (pendingMax, pendingBytesMax): " +
          "wait for some of them first.");
      }
      const operation = {
        id: ++this.#lastId, kind, body, retry: retry && queue, resolve, reject,
        bytes: text.length, sent: false,
      };
      if (timeoutMs > 0) {
        operation.timer = setTimeout(() => this.#settle(operation, null, new FanlogError("timeout",
          `No answer to ${kind} within ${timeoutMs} ms: try again, or set a longer timeoutMs.`,
        )), timeoutMs);
      }
      this.#pendingBytes += operation.bytes;
      this.#operations.set(operation.id, operation);
      this.#resend();
    });
  }

  #resend() {
    if (!this.#transport) return;
    for (const operation of this.#operations.values()) {
      if (operation.sent) continue;
      operation.sent = true;
      this.#transport.send(operation);
    }
  }

  #answered(id, ok, error) {
    const operation = this.#operations.get(id);
    if (!operation) return;
    if (error?.temporary && operation.retry) {
      operation.sent = false;
      this.#retryLater();
    } else {
      this.#settle(operation, ok, error);
    }
  }

  #retryLater() {
    clearTimeout(this.#resendTimer);
    this.#resendTimer = setTimeout(() => this.#resend(), 250 + Math.random() * 1_000);
  }

  #settle(operation, ok, error) {
    if (!this.#operations.delete(operation.id)) return;
    clearTimeout(operation.timer);
    this.#pendingBytes -= operation.bytes;
    if (error) operation.reject(error);
    else operation.resolve(ok);
  }

  #dropUnrepeatable() {
    const error = new FanlogError("connection_lost",
      "The connection broke before the answer came: the operation may or may not have happened.");
    for (const operation of [...this.#operations.values()]) {
      if (operation.sent && !operation.retry) this.#settle(operation, null, error);
    }
  }

  #frame(transport, frame) {
    if (transport !== this.#transport) return;
    if (frame.type === "upstream") {
      this.#setState(frame.up ? "open" : "upstream-lost");
      if (frame.up) this.#retryLater();
    } else if (frame.type === "expiring") {
      this.#tell("expiring", frame);
      // If it can't be made now, the server closes in time, and the next connection tries again.
      if (this.#login.renewable) this.#showToken().catch((error) => this.#tell("loginerror", error));
    } else if (frame.type === "presence") {
      for (const subscription of this.#subscriptions.values()) subscription.hearPresence(frame);
      this.#tell("presence", frame);
    } else {
      this.#tell(frame.type === "notice" ? "notice" : "frame", frame);
    }
  }

  #dedupe() {
    return `${this.#name}-${++this.#lastId}`;
  }

  #storageOf(store = "memory") {
    if (store === "memory") return null;
    if (store !== "session") {
      throw new FanlogError("invalid_argument", `store is "memory" or "session", not ${store}.`);
    }
    try {
      return this.#options.storage ?? globalThis.sessionStorage ?? null;
    } catch {
      return null; // a page without cookies may have no storage: then positions are in memory
    }
  }

  #check() {
    if (this.#state === "closed") {
      throw new FanlogError("closed", "The client is closed: connect a new one.");
    }
  }
}

/** One followed topic or pattern. An async iterator, and a source of events. */
export class Subscription extends EventTarget {
  #setup;
  #positions = {}; // "topic/partition" -> what the server was asked to continue with
  #next = {}; // "topic/partition" -> the lowest offset that has not come yet
  #saved = {}; // "topic/partition" -> { position, next } of what the page has taken
  #unsettled = null; // { positions, waiting }: they count once all snapshots are complete
  #buffer = []; // { message?, gap?, at, position? }
  #messages = 0; // of the buffer
  #taken = null; // the entry whose message the page works on
  #waiting = []; // callers of next()
  #gap = null; // goes with the next message
  #finished = false;
  #error = null;
  #accepted = false;
  #saveTimer;
  #settleReady;

  constructor(setup) {
    super();
    this.#setup = setup;
    this.target = setup.target;
    this.options = setup.options;
    this.paused = false;
    /** Who is there, if `presence` was asked for and the room is small enough to list. */
    this.users = [];
    this.count = 0;
    /** Resolves when the server has accepted the subscription for the first time. */
    this.ready = new Promise((resolve, reject) => { this.#settleReady = { resolve, reject }; });
    this.ready.catch(() => {});
    this.#positions = { ...setup.options.positions };
    this.#load();
    if (setup.callback) this.#pump(setup.callback);
  }

  /** Where a new subscription would continue: `{ "topic/partition": "position" }`. */
  get positions() { return { ...this.#positions }; }
  get closed() { return this.#finished; }

  async next() {
    this.#consume();
    for (;;) {
      const entry = this.#buffer.shift();
      if (!entry) break;
      this.#taken = entry;
      if (entry.message) {
        this.#messages -= 1;
        this.#maybeContinue();
        return { value: entry.message, done: false };
      }
      this.#consume();
    }
    this.#maybeContinue();
    if (this.#error) {
      const error = this.#error;
      this.#error = null;
      throw error;
    }
    if (this.#finished) return { value: undefined, done: true };
    return new Promise((resolve) => this.#waiting.push(resolve)).then(() => this.next());
  }

  async return() {
    this.close();
    return { value: undefined, done: true };
  }

  [Symbol.asyncIterator]() { return this; }

  /** Ends the subscription. */
  close() {
    if (this.#finished) return;
    if (!this.paused) this.#setup.stop();
    this.#buffer = [];
    this.#messages = 0;
    this.finish(null);
  }

  async #pump(callback) {
    for (;;) {
      try {
        const { value, done } = await this.next();
        if (done) return;
        await callback(value, this);
      } catch (error) {
        if (this.#finished) return;
        // A fault of the callback is the page's: the next message still comes.
        if (globalThis.reportError) globalThis.reportError(error);
        else console.error(error);
      }
    }
  }

  // --- called by the client and its transports -----------------------------------------------

  /** Whether it continues somewhere, where a new one would start as asked. */
  get hasBegun() {
    return Object.keys(this.#positions).length > 0 || (this.#accepted && !this.#unsettled);
  }

  /** What to send to subscribe: the options, and the positions once there are some. */
  wanted() {
    const { start, last, offset, partition, time } = this.options;
    const { filter, latest, presence, missing, policy } = this.options;
    const wanted = { target: this.target };
    // Also none, once accepted: then what appeared since comes from its first message.
    if (this.hasBegun) wanted.positions = this.#positions;
    if (last !== undefined) wanted.start = { last };
    else if (offset !== undefined) wanted.start = { offset, partition: partition ?? 0 };
    else if (time !== undefined) wanted.start = { time: time instanceof Date ? time.toISOString() : time };
    else wanted.start = start ?? "live";
    if (filter) wanted.filter = filter;
    if (latest) wanted.latest = true;
    if (presence) wanted.presence = presence;
    if (missing) wanted.missing = missing;
    if (policy) wanted.policy = policy;
    return wanted;
  }

  accepted(positions = {}) {
    const again = this.#accepted;
    this.#accepted = true;
    const known = Object.keys(this.#positions).length > 0;
    if (this.options.latest && !known) this.#awaitSnapshots(positions);
    else this.#adopt(positions);
    this.#settleReady.resolve(this);
    this.#tell(again ? "recovered" : "subscribed", { positions });
    if (this.options.presence && !isPattern(this.target)) this.#fetchPresence();
  }

  refused(error) {
    this.finish(error);
  }

  hear(frame) {
    if (this.#finished || this.paused) return;
    switch (frame.type) {
      case "messages": return this.#hearMessages(frame);
      case "snapshot": return this.#hearSnapshot(frame);
      case "position": return this.#advance(frame);
      case "gap": return this.#hearGap(frame);
      case "joined":
        this.#adopt(frame.positions ?? {});
        return this.#tell("joined", frame);
      case "left": return this.#hearLeft(frame);
      case "ended": return this.finish(toError(frame.error ?? {}));
      case "end":
        this.#tell("end", frame);
        if (!isPattern(this.target)) this.finish(null);
        return;
      default:
        this.#adopt(frame.positions ?? {});
        return this.#tell(frame.type, frame);
    }
  }

  hearPresence(frame) {
    if (!this.options.presence || !matches(this.target, frame.topic)) return;
    const left = new Set((frame.left ?? []).map(userOf));
    const joined = (frame.joined ?? []).map((one) => (typeof one === "string" ? { user: one } : one));
    const news = new Set(joined.map(userOf));
    if (frame.users) {
      // A large room is small again: this is everybody.
      this.users = frame.users;
    } else if (!frame.joined && !frame.left) {
      // The room is too large for a list; only the count is sent.
      this.users = [];
    } else if (!isPattern(this.target)) {
      this.users = this.users.filter((one) => !left.has(one.user) && !news.has(one.user)).concat(joined);
    }
    this.count = frame.count ?? this.users.length;
    this.#tell("presence", { ...frame, joined, left: frame.left ?? [], users: this.users });
  }

  finish(error) {
    if (this.#finished) return;
    this.#finished = true;
    this.#error = error;
    this.save();
    this.#setup.forget();
    const ended = error ?? new FanlogError("closed", "The subscription was closed.");
    this.#settleReady.reject(ended);
    if (error) {
      this.#tell("error", error);
      this.#setup.tell("subscriptionerror", { target: this.target, error });
    }
    this.#wakeReaders();
  }

  /** Writes the positions of what the page has taken. */
  save() {
    clearTimeout(this.#saveTimer);
    this.#saveTimer = undefined;
    const { storage, storageKey } = this.#setup;
    if (!storage || Object.keys(this.#saved).length === 0) return;
    try {
      storage.setItem(storageKey, JSON.stringify(this.#saved));
    } catch {
      // The storage is full or forbidden: after a reload the subscription starts as asked.
    }
  }

  // --- frames --------------------------------------------------------------------------------

  #hearMessages(frame) {
    const at = placeOf(frame);
    // A topic that was deleted and made again counts from 0 again.
    if (lineageOf(this.#positions[at]) !== lineageOf(frame.position)) delete this.#next[at];
    for (const raw of frame.messages) {
      if (raw.offset < this.#next[at]) continue; // came already
      this.#next[at] = raw.offset + 1;
      const mark = this.options.stream && raw.headers?.[STREAM_MARK];
      if (mark === "end") return this.#endStream(raw);
      if (mark) continue; // the writer is there, and has nothing to say yet
      this.#push({ message: toMessage(raw, frame.topic, frame.partition), at });
    }
    this.#advance(frame);
    this.#maybePause();
  }

  #endStream(raw) {
    const error = raw.headers["fanlog-error"];
    this.#tell("end", { topic: this.target, error });
    this.#setup.stop();
    this.finish(error === undefined ? null : new FanlogError("stream_failed", error));
  }

  #hearSnapshot(frame) {
    for (const raw of frame.messages) {
      const message = toMessage(raw, frame.topic, frame.partition);
      message.snapshot = true;
      this.#push({ message, at: placeOf(frame) });
    }
    if (frame.more) return;
    this.#tell("snapshot", { topic: frame.topic, partition: frame.partition });
    const unsettled = this.#unsettled;
    if (!unsettled) return;
    if (frame.position) unsettled.positions[placeOf(frame)] = frame.position;
    unsettled.waiting.delete(placeOf(frame));
    if (unsettled.waiting.size > 0) return;
    this.#unsettled = null;
    this.#adopt(unsettled.positions);
  }

  // If it breaks off before all are complete, the next connection begins anew.
  #awaitSnapshots(positions) {
    const waiting = new Set(Object.keys(positions));
    this.#unsettled = waiting.size > 0 ? { positions: { ...positions }, waiting } : null;
  }

  #hearGap(frame) {
    const gap = {
      topic: frame.topic, partition: frame.partition, from: frame.from, to: frame.to,
      reason: frame.reason,
    };
    const at = placeOf(frame);
    if (typeof frame.to === "string") {
      this.#positions[at] = frame.to;
      this.#next[at] = offsetOf(frame.to);
    }
    this.#push({ gap, at, position: this.#positions[at] });
    this.#tell("gap", gap);
    this.#setup.tell("gap", { target: this.target, ...gap });
  }

  #hearLeft(frame) {
    for (const at of Object.keys(this.#positions)) {
      if (at.slice(0, at.lastIndexOf("/")) !== frame.topic) continue;
      delete this.#positions[at];
      delete this.#next[at];
      delete this.#saved[at];
    }
    this.#tell("left", frame);
  }

  #advance(frame) {
    const at = placeOf(frame);
    if (this.#unsettled) {
      this.#unsettled.positions[at] = frame.position;
      return;
    }
    this.#positions[at] = frame.position;
    // Behind what the page has not taken yet, this position has to wait.
    let i = this.#buffer.length - 1;
    while (i >= 0 && this.#buffer[i].at !== at && !this.#buffer[i].message) i -= 1;
    if (this.#buffer[i]?.at === at) this.#buffer[i].position = frame.position;
    else this.#push({ at, position: frame.position });
    if (this.#messages === 0) this.#drain();
  }

  #adopt(positions) {
    for (const [at, position] of Object.entries(positions)) {
      const sameLine = lineageOf(this.#positions[at]) === lineageOf(position);
      const next = offsetOf(position);
      this.#next[at] = sameLine ? Math.max(this.#next[at] ?? 0, next) : next;
      this.#positions[at] = position;
      this.#saved[at] ??= { position, next };
    }
    this.#saveSoon();
  }

  #push(entry) {
    if (entry.message) {
      this.#messages += 1;
      if (this.#gap) {
        entry.message.gap = this.#gap;
        this.#gap = null;
      }
    } else if (entry.gap) {
      const joins = this.#gap?.to === entry.gap.from && placeOf(this.#gap) === entry.at;
      this.#gap = joins ? { ...entry.gap, from: this.#gap.from } : entry.gap;
    }
    this.#buffer.push(entry);
    if (entry.message) this.#wakeReaders();
  }

  #drain() {
    // Nothing but positions: no reader is needed to take them.
    if (this.#taken) return;
    for (const entry of this.#buffer.splice(0)) {
      this.#taken = entry;
      this.#consume();
    }
  }

  #consume() {
    const entry = this.#taken;
    if (!entry) return;
    this.#taken = null;
    const saved = (this.#saved[entry.at] ??= { position: this.#positions[entry.at], next: 0 });
    if (entry.message) saved.next = entry.message.offset + 1;
    if (entry.position) saved.position = entry.position;
    this.#saveSoon();
  }

  #maybePause() {
    if (this.#messages < this.options.bufferMax || this.#unsettled) return;
    if (this.options.policy === "skip") return this.#skip();
    this.paused = true;
    this.#setup.stop();
    this.#tell("pause", { buffered: this.#messages });
  }

  // The page wants what is new rather than everything: what waits for it becomes a gap.
  #skip() {
    const first = new Map();
    for (const { at, message } of this.#buffer.splice(0)) {
      if (message && !first.has(at)) first.set(at, message);
    }
    this.#messages = 0;
    for (const [at, { topic, partition, offset, gap }] of first) {
      const to = this.#positions[at];
      this.#gap = gap ?? this.#gap; // the page has not seen it
      this.#hearGap({ topic, partition, from: offset + lineageOf(to), to, reason: "skipped" });
    }
  }

  #maybeContinue() {
    if (!this.paused || this.#finished || this.#messages > this.options.bufferMax / 2) return;
    this.paused = false;
    this.#setup.start();
    this.#tell("resume", {});
  }

  async #fetchPresence() {
    try {
      const { count, users } = await this.#setup.presence();
      this.users = users ?? [];
      this.count = count ?? this.users.length;
      this.#tell("presence", { topic: this.target, joined: [], left: [], count: this.count, users: this.users });
    } catch {
      // The next connection asks again; joins and leaves still come.
    }
  }

  #load() {
    const { storage, storageKey, options } = this.#setup;
    if (!storage || options.latest) return;
    try {
      const saved = JSON.parse(storage.getItem(storageKey) ?? "{}");
      for (const [at, { position, next }] of Object.entries(saved)) {
        if (typeof position !== "string") continue;
        this.#saved[at] = { position, next };
        this.#positions[at] = position;
        this.#next[at] = next;
      }
    } catch {
      // Not ours, or forbidden: start as asked.
    }
  }

  #saveSoon() {
    if (!this.#setup.storage || this.#saveTimer !== undefined || this.#finished) return;
    this.#saveTimer = setTimeout(() => this.save(), SAVE_MS);
  }

  #wakeReaders() {
    for (const resolve of this.#waiting.splice(0)) resolve();
  }

  #tell(type, detail) {
    this.dispatchEvent(Object.assign(new Event(type), { detail }));
  }
}

// --- transports: WebSocket -------------------------------------------------------------------

class SocketTransport {
  kind = "websocket";
  #base;
  #options;
  #owner;
  #socket = null;
  #closed = false;
  #open = false;
  #heardAt = 0;
  #pingMs;
  #timer;
  #leaveAt = null;
  #lastId = 0;
  #own = new Map(); // id -> what to do with the answer
  #routes = new Map(); // target and canonical filter -> Subscription
  #keys = new Map(); // Subscription -> its key in #routes

  constructor(base, options, owner) {
    this.#base = base;
    this.#options = options;
    this.#owner = owner;
    this.#pingMs = options.pingMs;
  }

  async start() {
    this.#timer = setTimeout(() => this.#lose("no answer in time"), this.#options.connectTimeoutMs);
    let token;
    try {
      const url = endpoint(this.#base, "v1/ws", this.#options);
      token = await this.#options.login.get();
      url.protocol = url.protocol === "https:" ? "wss:" : "ws:";
      if (this.#closed) return;
      const Socket = this.#options.WebSocket ?? globalThis.WebSocket;
      this.#socket = new Socket(url.href, ["fanlog.json"]);
    } catch (error) {
      return this.#lose(String(error?.message ?? error));
    }
    this.#socket.onmessage = (event) => this.#hear(event.data);
    if (token) this.#socket.onopen = () => this.#showToken(token);
    this.#socket.onclose = (event) => this.#lose(event.reason || `closed with ${event.code}`, event.code);
    this.#socket.onerror = () => {}; // a close event follows
  }

  send(operation) {
    this.#write({ id: `c${operation.id}`, op: operation.kind, ...operation.body });
  }

  subscribe(subscription) {
    this.#ask({ op: "subscribe", ...subscription.wanted() }, (ok, error) => {
      if (subscription.closed || subscription.paused) return;
      if (error?.temporary) {
        const again = () => {
          if (!this.#closed && !subscription.closed) this.subscribe(subscription);
        };
        setTimeout(again, 500 + Math.random() * 1_000);
      } else if (error) {
        subscription.refused(error);
      } else {
        const key = routeKey(ok.target ?? subscription.target, ok.filter);
        // Frames of an earlier subscription to the same target came before this answer.
        this.#routes.set(key, subscription);
        this.#keys.set(subscription, { key, filter: subscription.options.filter });
        subscription.accepted(ok.positions);
      }
    });
  }

  unsubscribe(subscription) {
    const known = this.#keys.get(subscription);
    this.#keys.delete(subscription);
    if (known && this.#routes.get(known.key) === subscription) this.#routes.delete(known.key);
    this.#ask({ op: "unsubscribe", target: subscription.target, filter: subscription.options.filter }, () => {});
  }

  /** Finds out soon whether the connection still works. */
  probe() {
    if (this.#open) this.#ping(this.#options.wakeTimeoutMs);
  }

  close() {
    this.#closed = true;
    clearTimeout(this.#timer);
    const socket = this.#socket;
    if (!socket) return;
    socket.onmessage = socket.onclose = null;
    try {
      socket.close(1000);
    } catch {
      // It never opened.
    }
  }

  #hear(data) {
    if (this.#closed || typeof data !== "string") return;
    this.#heardAt = Date.now();
    const frame = JSON.parse(data);
    if (frame.id !== undefined && frame.id !== null) return this.#answer(frame);
    if (frame.type === "welcome") return this.#greet(frame);
    if (frame.type === "login") return this.#mustLogIn();
    if (frame.type === "reconnect") return this.#leaveIn(frame.after_ms ?? 0, frame.reason);
    const subscription = frame.target === undefined
      ? undefined : this.#routes.get(routeKey(frame.target, frame.filter));
    if (subscription) subscription.hear(frame);
    else if (frame.target === undefined) this.#owner.frame(frame);
  }

  // The first operation: a browser can't send a header with a WebSocket, and an address is no place
  // for a secret.
  #showToken(token) {
    this.#ask({ op: "token", token }, (_, error) => {
      if (error) this.#lose(error.message, error.code === "unauthenticated" ? LOGGED_OUT : undefined, error);
    });
  }

  #greet(frame) {
    if (this.#open) return;
    this.#open = true;
    if (frame.ping_seconds > 0) this.#pingMs = frame.ping_seconds * 1000;
    this.#watch();
    this.#owner.opened(frame);
  }

  #mustLogIn() {
    if (this.#options.login.given) return; // it is on its way
    this.#lose("The server asks for a login: give a token, or log in first (POST /v1/login).", LOGGED_OUT);
  }

  #answer(frame) {
    const error = frame.error ? toError(frame.error) : null;
    const own = this.#own.get(frame.id);
    if (own) {
      this.#own.delete(frame.id);
      own(frame.ok, error);
    } else if (typeof frame.id === "string" && frame.id[0] === "c") {
      this.#owner.answered(Number(frame.id.slice(1)), frame.ok, error);
    }
  }

  #ask(body, then) {
    const id = `t${++this.#lastId}`;
    this.#own.set(id, then);
    this.#write({ id, ...body });
  }

  #write(frame) {
    if (this.#socket?.readyState === 1) this.#socket.send(JSON.stringify(frame));
  }

  // A browser does not show the server's pings, so the client sends its own when it is quiet.
  #watch() {
    clearTimeout(this.#timer);
    const quietMs = Date.now() - this.#heardAt;
    this.#timer = setTimeout(() => {
      if (Date.now() - this.#heardAt >= this.#pingMs) this.#ping(this.#options.pongTimeoutMs);
      else this.#watch();
    }, Math.max(this.#pingMs - quietMs, 0));
  }

  #ping(timeoutMs) {
    clearTimeout(this.#timer);
    const deadline = Date.now() + timeoutMs;
    this.#ask({ op: "ping" }, () => this.#watch());
    this.#timer = setTimeout(() => {
      // A tab that slept through the deadline could not hear the answer: ask again.
      if (Date.now() - deadline > 2_000) this.#ping(timeoutMs);
      else this.#lose("no answer to a ping");
    }, timeoutMs);
  }

  #leaveIn(afterMs, reason) {
    this.#leaveAt = Date.now() + afterMs;
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.#lose(reason ?? "the server asked to reconnect"), afterMs);
  }

  #lose(message, code, error) {
    if (this.#closed) return;
    const afterMs = this.#leaveAt === null ? undefined : Math.max(this.#leaveAt - Date.now(), 0);
    const unauthenticated = code === LOGGED_OUT;
    const fatal = fatalOf(code, message) ?? (unauthenticated || error?.temporary ? undefined : error);
    this.#owner.lost({ message, afterMs, fatal, unauthenticated });
  }
}

// --- transports: SSE and POST ----------------------------------------------------------------

class EventTransport {
  kind = "sse";
  #base;
  #options;
  #owner;
  #closed = false;
  #abort = new AbortController();
  #subscriptions = new Map(); // Subscription -> its EventStream, or null
  #alone = new Set(); // each of these gets a stream of its own
  #streams = new Set();
  #arranging = false;
  #posting = Promise.resolve();
  #pingMs;

  constructor(base, options, owner) {
    this.#base = base;
    this.#options = options;
    this.#owner = owner;
    this.#pingMs = options.pingMs;
  }

  async start() {
    const timer = setTimeout(() => this.#lose({ message: "no answer in time" }), this.#options.connectTimeoutMs);
    try {
      const status = await this.#fetch("GET", "v1/status", {}).catch((error) => {
        if (error.code !== "forbidden") throw error;
        return this.#fetch("GET", "v1/whoami", {}); // who may read some topics, and nothing else
      });
      if (!this.#closed) this.#owner.opened({ ...status, connection: null, user: this.#options.user });
    } catch (error) {
      this.#lose(lossOf(error));
    } finally {
      clearTimeout(timer);
    }
  }

  subscribe(subscription) {
    // Its messages come under the topic's real name, which only the server knows.
    if (subscription.target === OWN_USER) this.#alone.add(subscription);
    this.#subscriptions.set(subscription, null);
    this.#arrange();
  }

  unsubscribe(subscription) {
    this.#subscriptions.get(subscription)?.remove(subscription);
    this.#subscriptions.delete(subscription);
  }

  async send(operation) {
    try {
      // One after another: messages keep their order.
      if (operation.kind === "publish") {
        this.#posting = this.#posting.then(() => this.#do(operation));
        await this.#posting;
      } else {
        await this.#do(operation);
      }
    } catch (error) {
      this.#lose(lossOf(error));
    }
  }

  probe() {
    for (const stream of this.#streams) stream.probe();
  }

  /** The streams continue with a new token. */
  renew() {
    this.#lose({ message: "the streams continue with a new token", afterMs: 0 });
  }

  close() {
    this.#closed = true;
    this.#abort.abort();
    for (const stream of this.#streams) stream.close();
  }

  async #do(operation) {
    if (this.#closed) return;
    try {
      this.#owner.answered(operation.id, await this.#perform(operation.kind, operation.body), null);
    } catch (error) {
      if (!(error instanceof FanlogError)) throw error; // the network, not the server
      if (error.code === "unauthenticated" && operation.retry) throw error; // with a new token
      if (!this.#closed) this.#owner.answered(operation.id, null, error);
    }
  }

  #perform(kind, { topic, dedupe, timeout_seconds, ...body }) {
    const path = encodeURIComponent(topic ?? "");
    switch (kind) {
      case "publish":
        return this.#fetch("POST", `v1/topics/${path}/messages`, { body, headers: { "Idempotency-Key": dedupe } });
      case "request":
        return this.#fetch("POST", `v1/request/${path}`, { body, query: { timeout_seconds } });
      case "presence":
        return this.#fetch("GET", `v1/presence/${path}`, {});
      case "history":
        return this.#history(path, body);
      default: // a token goes with each request
        return {};
    }
  }

  async #history(path, { partition = 0, before, limit }) {
    const end = before === undefined ? undefined : offsetOf(before);
    if (end === 0) return { messages: [], before: null };
    const offset = end === undefined ? undefined : Math.max(end - limit, 0);
    const query = end === undefined ? { last: limit } : { offset, limit: end - offset };
    const page = await this.#fetch("GET", `v1/topics/${path}/partitions/${partition}/messages`, { query });
    const messages = page.messages.filter((one) => end === undefined || one.offset < end);
    return { ...page, messages, before: messages[0]?.offset || null };
  }

  #fetch(method, path, request) {
    return send(this.#base, this.#options, method, path, { ...request, signal: this.#abort.signal });
  }

  // A browser opens about six connections to a host, so that subscriptions share streams.
  #arrange() {
    if (this.#arranging) return;
    this.#arranging = true;
    queueMicrotask(() => {
      this.#arranging = false;
      if (this.#closed) return;
      const groups = new Map();
      for (const [subscription, stream] of this.#subscriptions) {
        if (stream || subscription.closed) continue;
        const key = this.#alone.has(subscription) ? subscription : groupKey(subscription.wanted());
        groups.set(key, [...(groups.get(key) ?? []), subscription]);
      }
      for (const group of groups.values()) this.#openStream(group);
    });
  }

  #openStream(group) {
    const key = groupKey({ ...group[0].wanted(), start: undefined, positions: {} });
    const stream = new EventStream({
      key, base: this.#base, options: this.#options, subscriptions: group, pingMs: this.#pingMs,
      lost: (reason) => this.#lose(reason),
      frame: (frame) => this.#owner.frame(frame),
      refused: (error) => this.#refused(stream, error),
      empty: () => this.#streams.delete(stream),
      begun: () => this.#merge(key),
    });
    for (const subscription of group) this.#subscriptions.set(subscription, stream);
    this.#streams.add(stream);
    stream.run();
  }

  // Those that are under way with the same options continue in one stream, at their positions.
  #merge(key) {
    const alike = [...this.#streams].filter((one) => one.key === key && one.subscriptions
      .every((each) => each.hasBegun && !this.#alone.has(each)));
    if (alike.length < 2) return;
    for (const stream of alike) {
      stream.close();
      this.#streams.delete(stream);
    }
    this.#openStream(alike.flatMap((one) => one.subscriptions));
  }

  #refused(stream, error) {
    this.#streams.delete(stream);
    if (stream.subscriptions.length === 1) {
      const [subscription] = stream.subscriptions;
      this.#subscriptions.delete(subscription);
      return subscription.refused(error);
    }
    for (const subscription of stream.subscriptions) {
      this.#alone.add(subscription);
      this.#subscriptions.set(subscription, null);
    }
    this.#arrange();
  }

  #lose(reason) {
    if (!this.#closed) this.#owner.lost(reason);
  }
}

/** One SSE response, for one or more subscriptions with the same options. */
class EventStream {
  #setup;
  #abort = new AbortController();
  #heardAt = Date.now();
  #timer;

  constructor(setup) {
    this.#setup = setup;
    this.key = setup.key;
    this.subscriptions = setup.subscriptions;
  }

  async run() {
    try {
      this.#watch(this.#setup.pingMs * 2.4);
      const url = this.#url();
      const headers = await headersOf(this.#setup.options, { Accept: "text/event-stream" });
      const response = await fetchOf(this.#setup.options)(url.href, {
        headers, cache: "no-store", signal: this.#abort.signal,
      });
      if (!response.ok) {
        const error = await problemOf(response);
        if (error.temporary) this.#lose(error.message, retryAfterMs(response));
        else if (error.code === "unauthenticated") this.#loseLogin(error);
        else if (!this.#abort.signal.aborted) this.#setup.refused(error);
        return;
      }
      await this.#read(response.body);
      this.subscriptions = this.subscriptions.filter((one) => !one.closed);
      if (this.subscriptions.length > 0) this.#lose("the stream ended");
      else this.#setup.empty();
    } catch (error) {
      this.#lose(String(error?.message ?? error));
    } finally {
      clearTimeout(this.#timer);
    }
  }

  remove(subscription) {
    this.subscriptions = this.subscriptions.filter((one) => one !== subscription);
    if (this.subscriptions.length > 0) return;
    this.close();
    this.#setup.empty();
  }

  probe() {
    if (Date.now() - this.#heardAt > this.#setup.options.wakeTimeoutMs) {
      this.#lose("the page was asleep", 0); // cheaper than to wait for the next comment
    }
  }

  close() {
    clearTimeout(this.#timer);
    this.#abort.abort();
  }

  #url() {
    const url = endpoint(this.#setup.base, "v1/stream", this.#setup.options);
    const query = url.searchParams;
    const positions = {};
    for (const subscription of this.subscriptions) {
      const wanted = subscription.wanted();
      query.append("topic", wanted.target);
      setOptions(query, wanted);
      if (!wanted.positions) setStart(query, wanted.start);
      for (const [at, position] of Object.entries(wanted.positions ?? {})) {
        // Two subscriptions may share a topic: the one that is further drops what it knows.
        if (!(offsetOf(positions[at] ?? "") <= offsetOf(position))) positions[at] = position;
      }
    }
    // All of them, or none: see groupKey.
    if (this.subscriptions[0].hasBegun) query.set("positions", JSON.stringify(positions));
    return url;
  }

  async #read(body) {
    const reader = body.pipeThrough(new TextDecoderStream()).getReader();
    let rest = "";
    let event = { type: "message", data: [], id: undefined };
    for (;;) {
      const { value, done } = await reader.read();
      if (done || this.#abort.signal.aborted) return;
      this.#heardAt = Date.now();
      this.#watch(this.#setup.pingMs * 2.4);
      const lines = (rest + value).split(/\r\n|\n|\r(?!$)/);
      rest = lines.pop();
      for (const line of lines) {
        if (line === "") {
          if (event.data.length > 0) this.#hear(event.type, event.data.join("\n"), event.id);
          event = { type: "message", data: [], id: event.id };
          continue;
        }
        const colon = line.indexOf(":");
        if (colon === 0) continue; // a comment: the server is there
        const field = colon < 0 ? line : line.slice(0, colon);
        const text = colon < 0 ? "" : line.slice(colon + 1).replace(/^ /, "");
        if (field === "data") event.data.push(text);
        else if (field === "event") event.type = text;
        else if (field === "id") event.id = text;
      }
    }
  }
  #hear(type, data, id) {
    if (this.#abort.signal.aborted) return;
    const content = JSON.parse(data);
    const positions = { ...parseEventId(id, content), ...content.positions };
    if (type === "reconnect") return this.#lose(content.reason ?? "draining", content.after_ms);
    if (type === "error") return this.#fail(toError(content));
    if (type === "subscribed") {
      for (const one of [...this.subscriptions]) one.accepted(matching(one.target, positions));
      return this.#setup.begun();
    }
    if (["upstream", "presence", "notice", "expiring"].includes(type)) {
      return this.#setup.frame({ ...content, type });
    }
    for (const subscription of [...this.subscriptions]) {
      if (content.topic !== undefined && !matches(subscription.target, content.topic)) continue;
      const { topic, partition } = content;
      const position = positions[`${topic}/${partition}`];
      if (type === "message") {
        subscription.hear({ type: "messages", topic, partition, position, messages: [content] });
      } else if (type === "snapshot") {
        subscription.hear({ type, topic, partition, messages: [content], more: true });
      } else if (type === "snapshot-end") {
        subscription.hear({ type: "snapshot", topic, partition, position, messages: [], more: false });
      } else {
        subscription.hear({ ...content, type, positions: matching(subscription.target, positions) });
      }
    }
  }

  #fail(error) {
    const fatal = error.code === "disconnected" ? error : undefined;
    if (fatal || error.temporary) return this.#lose(error.message, undefined, fatal);
    if (error.code === "unauthenticated") return this.#loseLogin(error);
    this.close();
    this.#setup.refused(error);
  }

  #watch(timeoutMs) {
    clearTimeout(this.#timer);
    this.#timer = setTimeout(() => this.#lose("nothing came for too long"), timeoutMs);
  }

  #lose(message, afterMs, fatal) {
    if (this.#abort.signal.aborted) return;
    this.close();
    this.#setup.lost({ message, afterMs, fatal });
  }

  #loseLogin(error) {
    if (this.#abort.signal.aborted) return;
    this.close();
    this.#setup.lost(lossOf(error));
  }
}

/** The token, and where new ones come from: a text, or a function that makes one. */
class Login {
  #source;
  #made = null; // a promise

  constructor(source) { this.#source = source; }

  set source(source) {
    this.#source = source;
    this.#made = null;
  }
  get given() { return this.#source !== undefined && this.#source !== null && this.#source !== ""; }
  /** Whether there is more than the one token. */
  get renewable() { return typeof this.#source === "function"; }

  async get() {
    if (!this.renewable) return this.#source;
    // One call for all who want it now.
    this.#made ??= Promise.resolve().then(() => this.#source());
    try {
      return await this.#made;
    } catch (error) {
      this.#made = null;
      throw error;
    }
  }

  /** The token is not good any more, or not for long: the next `get` makes a new one. */
  forget() { this.#made = null; }
}

// --- small things ----------------------------------------------------------------------------

function toUrl(url) {
  const base = new URL(url ?? ".", globalThis.location?.href ?? undefined);
  if (url === undefined) base.pathname = "/";
  base.protocol = base.protocol.replace("ws", "http");
  base.search = base.hash = "";
  if (!base.pathname.endsWith("/")) base.pathname += "/";
  return base;
}

function endpoint(base, path, options) {
  const url = new URL(path, base);
  if (options.user) url.searchParams.set("user", options.user);
  return url;
}

async function headersOf({ login, user }, headers) {
  const token = await login.get();
  if (user) headers["Fanlog-User"] = encodeURIComponent(user);
  if (token) headers.Authorization = `Bearer ${token}`;
  return headers;
}

/** One request over HTTP. Rejects with the server's error. */
async function send(base, options, method, path, { body, headers = {}, query = {}, signal }) {
  const url = new URL(path, base);
  for (const [name, value] of Object.entries(query)) {
    if (value !== undefined) url.searchParams.set(name, value);
  }
  const init = { method, headers: await headersOf(options, { Accept: "application/json", ...headers }), signal };
  if (body !== undefined) {
    init.body = JSON.stringify(body);
    init.headers["Content-Type"] = "application/json";
  }
  const response = await fetchOf(options)(url.href, init);
  if (!response.ok) throw await problemOf(response);
  return response.json();
}

/** Why a connection is lost, from what was thrown. */
function lossOf(error) {
  return { message: String(error?.message ?? error), unauthenticated: error?.code === "unauthenticated" };
}

function fetchOf(options) {
  return options.fetch ?? globalThis.fetch.bind(globalThis);
}

function isOffline() {
  return globalThis.navigator?.onLine === false;
}

function randomText() {
  // crypto.randomUUID exists on https pages only.
  const bytes = crypto.getRandomValues(new Uint8Array(12));
  return Array.from(bytes, (byte) => byte.toString(16).padStart(2, "0")).join("");
}

function subscriptionKey(target, filter) {
  return filter ? `${target} ${JSON.stringify(filter)}` : target;
}

function routeKey(target, filter) {
  return `${target}\n${filter ?? ""}`;
}

function groupKey({ filter, latest, presence, missing, policy, positions, start }) {
  return JSON.stringify([filter, latest, presence, missing, policy, positions ? null : start]);
}

function setStart(query, start) {
  if (typeof start === "string") return query.set("start", start);
  for (const [name, value] of Object.entries(start)) query.set(name, value);
}

function setOptions(query, { filter, latest, presence, missing, policy }) {
  if (filter?.key !== undefined) query.set("key", filter.key);
  for (const [name, values] of Object.entries(filter?.headers ?? {})) {
    query.delete(`header.${name}`);
    for (const value of [values].flat()) query.append(`header.${name}`, value);
  }
  if (latest) query.set("latest", "true");
  if (presence) query.set("presence", JSON.stringify(presence));
  if (missing) query.set("missing", missing);
  if (policy) query.set("policy", policy);
}

/** The positions in an SSE id: `offset.epoch.number`, or `topic:number:partition.offset.epoch,…;…`. */
function parseEventId(id, { topic, partition = 0 }) {
  const positions = {};
  if (!id) return positions;
  if (!id.includes(":")) return topic === undefined ? {} : { [`${topic}/${partition}`]: id };
  for (const part of id.split(";")) {
    const [name, number, entries] = part.split(":");
    for (const entry of entries.split(",")) {
      const [index, offset, epoch] = entry.split(".");
      positions[`${decodeURIComponent(name)}/${index}`] = `${offset}.${epoch}.${number}`;
    }
  }
  return positions;
}

function placeOf(frame) {
  return `${frame.topic}/${frame.partition}`;
}

function offsetOf(position) {
  return Number.parseInt(position, 10);
}

/** What stays the same in a position as long as the topic was not made again. */
function lineageOf(position) {
  return position?.slice(position.indexOf("."));
}

function userOf(one) {
  return typeof one === "string" ? one : one.user;
}

function isPattern(target) {
  return /(^|\.)(\*|>)($|\.)/.test(target);
}

function matches(target, topic) {
  if (target === topic || target === OWN_USER) return true;
  if (!isPattern(target)) return false;
  const wanted = target.split(".");
  const parts = topic.split(".");
  for (const [i, part] of wanted.entries()) {
    if (part === ">") return parts.length > i;
    if (i >= parts.length || (part !== "*" && part !== parts[i])) return false;
  }
  return wanted.length === parts.length;
}

function matching(target, positions) {
  const fits = ([at]) => matches(target, at.slice(0, at.lastIndexOf("/")));
  return Object.fromEntries(Object.entries(positions).filter(fits));
}

function toOutgoing(value, key, headers) {
  const message = {};
  if (key !== undefined && key !== null) {
    if (typeof key === "string") message.key = key;
    else message.key_base64 = toBase64(key);
  }
  if (headers) message.headers = headers;
  if (typeof value === "string") message.text = value;
  else if (value instanceof ArrayBuffer || ArrayBuffer.isView(value)) message.base64 = toBase64(value);
  else if (value === undefined) throw new FanlogError("invalid_argument", "Give a value: text, bytes, or JSON.");
  else message.json = value;
  return message;
}

function toMessage(raw, topic, partition) {
  const { key_base64, json, text, base64, ...message } = raw;
  message.topic ??= topic;
  message.partition ??= partition;
  message.headers ??= {};
  message.key ??= key_base64 === undefined ? null : fromBase64(key_base64);
  if (raw.deleted) message.value = null;
  else if (base64 !== undefined) message.value = fromBase64(base64);
  else message.value = json === undefined ? text ?? null : json;
  return message;
}

function toBase64(data) {
  const bytes = data instanceof ArrayBuffer
    ? new Uint8Array(data) : new Uint8Array(data.buffer, data.byteOffset, data.byteLength);
  let text = "";
  for (let i = 0; i < bytes.length; i += 8_192) {
    text += String.fromCharCode(...bytes.subarray(i, i + 8_192));
  }
  return btoa(text);
}

function fromBase64(text) {
  return Uint8Array.from(atob(text), (character) => character.charCodeAt(0));
}

function toError({ code, message, detail, ...rest }) {
  return new FanlogError(code ?? "internal", message ?? detail ?? "The server refused.", rest);
}

async function problemOf(response) {
  try {
    return toError(await response.json());
  } catch {
    // Not from Fanlog: a proxy, perhaps, whose server is away.
    const code = response.status >= 500 || response.status === 429 ? "connect" : "bad_request";
    return new FanlogError(code, `The server answered with status ${response.status}.`);
  }
}

function retryAfterMs(response) {
  const seconds = Number(response.headers.get("Retry-After"));
  return seconds > 0 ? seconds * 1000 : undefined;
}

function fatalOf(code, message) {
  // The server closed the connection on purpose, and does not want this user back.
  return code === 4001 ? new FanlogError("disconnected", message) : undefined;
}
