// Types of fanlog.js, the browser client of Fanlog.

export declare const VERSION: string;

export type Json = null | boolean | number | string | Json[] | { [name: string]: Json };
/** Text and JSON as they are, bytes as Uint8Array, and null for a deleted key. */
export type Value = Json | Uint8Array;
/** What can be published. Objects become JSON. */
export type Publishable = Json | object | ArrayBuffer | ArrayBufferView;
/** `offset.epoch.number` of the next message wanted. Keep it, and hand it back unchanged. */
export type Position = string;
/** `{ "topic/partition": position }` */
export type Positions = Record<string, Position>;

export type State = "connecting" | "open" | "reconnecting" | "offline" | "upstream-lost" | "closed";
export type Transport = "websocket" | "sse";

export interface Gap {
  topic: string;
  partition: number;
  from: Position;
  to: Position;
  reason: string;
}

export interface Message<V = Value> {
  topic: string;
  partition: number;
  offset: number;
  /** RFC 3339, UTC. */
  time: string;
  key: string | Uint8Array | null;
  headers: Record<string, string>;
  value: V;
  deleted?: true;
  /** Messages before this one are lost: these. */
  gap?: Gap;
  /** It belongs to the current values that a subscription with `latest` begins with. */
  snapshot?: true;
}

export interface Published {
  topic: string;
  partition: number;
  offset: number;
  position?: Position;
}

export interface User {
  user: string;
  connections?: number;
  info?: Json;
}

export interface Presence {
  topic: string;
  count: number;
  users?: User[];
}

export interface Filter {
  /** A glob that the key must match, such as "order-*". */
  key?: string;
  /** For each header its value, or a list of values of which it must have one. */
  headers?: Record<string, string | string[]>;
}

export interface ConnectOptions {
  /** The name that presence shows. Without logins it is believed; with them the token says it. */
  user?: string;
  /**
   * A key or a token (JWT). A function makes a new one when it is needed: for the first connection,
   * before the old one expires, and after the server has refused it.
   */
  token?: string | (() => string | Promise<string>);
  /** Default: WebSocket, and SSE where a proxy blocks it. */
  transports?: Transport[];
  backoffMinMs?: number;
  backoffMaxMs?: number;
  stableMs?: number;
  connectTimeoutMs?: number;
  pingMs?: number;
  pongTimeoutMs?: number;
  wakeTimeoutMs?: number;
  upgradeMs?: number;
  /** Operations without an answer, those made while offline among them. */
  pendingMax?: number;
  pendingBytesMax?: number;
  /** Messages that wait for a slow page, for each subscription. */
  bufferMax?: number;
  requestTimeoutMs?: number;
  /** In place of sessionStorage. */
  storage?: Pick<Storage, "getItem" | "setItem">;
  storageKey?: string;
  WebSocket?: unknown;
  fetch?: typeof fetch;
}

export interface SubscribeOptions {
  /** Default: "live". Without effect once there are positions. */
  start?: "live" | "earliest";
  /** The last N messages of each partition, then live. */
  last?: number;
  offset?: number;
  partition?: number;
  /** "10m" ago, or a time. */
  time?: string | Date;
  /** Continue here: what `positions` of an earlier subscription was. */
  positions?: Positions;
  filter?: Filter;
  /** First the current value of every key, then changes. */
  latest?: boolean;
  /** Be seen in the topic, with this information, and see others come and go. */
  presence?: boolean | Json;
  missing?: "wait" | "fail";
  /** What happens to a page that is too slow. Default: "catch-up". "skip" makes a gap. */
  policy?: "catch-up" | "skip" | "disconnect";
  /** Where positions are kept. "session" survives a reload of the tab. Default: "memory". */
  store?: "memory" | "session";
  bufferMax?: number;
}

export interface PublishOptions {
  key?: string | ArrayBuffer | ArrayBufferView;
  headers?: Record<string, string>;
  /** The id that makes retries safe. Default: a new one for each call. */
  dedupe?: string;
  /** false: fail without a connection, where it would wait for one. */
  queue?: boolean;
  /** Default: no limit. */
  timeoutMs?: number;
}

export declare class FanlogError extends Error {
  constructor(code: string, message: string, detail?: object);
  readonly code: string;
  readonly detail: object;
  /** Whether the same call may work later. */
  readonly temporary: boolean;
}

export interface DetailEvent<D> extends Event {
  readonly detail: D;
}

export interface StateDetail {
  state: State;
  previous: State;
  /** ms since 1970, or null. */
  nextAttempt: number | null;
  transport: Transport | null;
  reason?: string;
}

export interface PresenceDetail {
  topic: string;
  joined: User[];
  left: User[];
  count: number;
  users: User[];
}

export interface SubscriptionEvents {
  subscribed: DetailEvent<{ positions: Positions }>;
  recovered: DetailEvent<{ positions: Positions }>;
  gap: DetailEvent<Gap>;
  presence: DetailEvent<PresenceDetail>;
  snapshot: DetailEvent<{ topic: string; partition: number }>;
  joined: DetailEvent<{ topic: string; positions: Positions }>;
  left: DetailEvent<{ topic: string }>;
  notice: DetailEvent<{ kind: string; topic: string }>;
  pause: DetailEvent<{ buffered: number }>;
  resume: DetailEvent<object>;
  end: DetailEvent<{ topic: string; error?: string }>;
  error: DetailEvent<FanlogError>;
}

export interface ClientEvents {
  statechange: DetailEvent<StateDetail>;
  gap: DetailEvent<Gap & { target: string }>;
  presence: DetailEvent<Omit<PresenceDetail, "users">>;
  notice: DetailEvent<object>;
  subscriptionerror: DetailEvent<{ target: string; error: FanlogError }>;
  /** The login ends soon. With a function as `token` the client shows a new one by itself. */
  expiring: DetailEvent<{ expires: string; seconds: number }>;
  /** A new token could not be made, or the server refused it. */
  loginerror: DetailEvent<unknown>;
}

export declare class Subscription<V = Value>
  extends EventTarget
  implements AsyncIterableIterator<Message<V>>
{
  private constructor();
  readonly target: string;
  readonly options: Readonly<SubscribeOptions>;
  /** The server has accepted the subscription for the first time. */
  readonly ready: Promise<this>;
  readonly positions: Positions;
  readonly closed: boolean;
  /** The buffer is full: the server sends nothing until the page has taken half of it. */
  readonly paused: boolean;
  /** With `presence`: who is there, where the room is small enough to list. */
  readonly users: readonly User[];
  readonly count: number;
  next(): Promise<IteratorResult<Message<V>, undefined>>;
  return(): Promise<IteratorResult<Message<V>, undefined>>;
  [Symbol.asyncIterator](): this;
  close(): void;
  addEventListener<K extends keyof SubscriptionEvents>(
    type: K,
    listener: (event: SubscriptionEvents[K]) => unknown,
    options?: boolean | AddEventListenerOptions,
  ): void;
  addEventListener(
    type: string,
    listener: EventListenerOrEventListenerObject | null,
    options?: boolean | AddEventListenerOptions,
  ): void;
}

export type Callback<V> = (message: Message<V>, subscription: Subscription<V>) => unknown;

export declare class Client extends EventTarget {
  constructor(url?: string | URL | readonly (string | URL)[], options?: ConnectOptions);
  readonly state: State;
  readonly nextAttempt: number | null;
  readonly transport: Transport | null;
  readonly url: string;
  readonly user: string | null;
  readonly connection: string | null;
  readonly process: string | null;
  readonly bus: string | null;
  readonly pending: number;
  subscribe<V = Value>(target: string, callback: Callback<V>): Subscription<V>;
  subscribe<V = Value>(
    target: string,
    options?: SubscribeOptions,
    callback?: Callback<V>,
  ): Subscription<V>;
  stream<V = Value>(name: string, options?: SubscribeOptions): Subscription<V>;
  publish(topic: string, value: Publishable, options?: PublishOptions): Promise<Published>;
  publishMany(
    topic: string,
    messages: readonly (Pick<PublishOptions, "key" | "headers"> & { value: Publishable })[],
    options?: Pick<PublishOptions, "dedupe" | "queue" | "timeoutMs">,
  ): Promise<Published[]>;
  request<V = Value>(
    topic: string,
    value: Publishable,
    options?: Pick<PublishOptions, "key" | "headers" | "timeoutMs">,
  ): Promise<Message<V>>;
  presence(topic: string): Promise<Presence>;
  history<V = Value>(
    topic: string,
    options?: { partition?: number; before?: Position | number; limit?: number },
  ): Promise<{ messages: Message<V>[]; positions: Positions; before: number | null }>;
  /** Shows a new token to the server without a disconnect, and to each later connection. */
  setToken(token: NonNullable<ConnectOptions["token"]>): Promise<void>;
  /** A ticket for one EventSource or WebSocket of the page's own: `?ticket=…`. Good once. */
  ticket(use?: "events" | "websocket"): Promise<string>;
  reconnect(): void;
  close(): void;
  addEventListener<K extends keyof ClientEvents>(
    type: K,
    listener: (event: ClientEvents[K]) => unknown,
    options?: boolean | AddEventListenerOptions,
  ): void;
  addEventListener(
    type: string,
    listener: EventListenerOrEventListenerObject | null,
    options?: boolean | AddEventListenerOptions,
  ): void;
}

export declare function connect(
  url?: string | URL | readonly (string | URL)[],
  options?: ConnectOptions,
): Client;
export declare function connect(options: ConnectOptions): Client;
