// Values of messages: bytes, text, hex, and the difference of two of them. No page, no requests.

import { parse, stringify } from "/dashboard/core/api.js";

const strict = new TextDecoder("utf-8", { fatal: true, ignoreBOM: true });
const lenient = new TextDecoder("utf-8", { ignoreBOM: true });
const encoder = new TextEncoder();
// More lines are not compared one by one: it would take the browser too long.
const LINES_MAX = 1500;

export function fromBase64(text) {
  const raw = atob(text ?? "");
  const bytes = new Uint8Array(raw.length);
  for (let i = 0; i < raw.length; i += 1) bytes[i] = raw.charCodeAt(i);
  return bytes;
}

export function toBase64(bytes) {
  let raw = "";
  for (let at = 0; at < bytes.length; at += 8192) raw += String.fromCharCode(...bytes.subarray(at, at + 8192));
  return btoa(raw);
}

export const toBytes = (text) => encoder.encode(text);
export const shownText = (bytes) => lenient.decode(bytes);

// The text of bytes that are UTF-8; null for others.
export function maybeText(bytes) {
  try {
    return strict.decode(bytes);
  } catch {
    return null;
  }
}

// The value of JSON text, with large integers exact; undefined for other text.
export function maybeJson(text) {
  if (text === null || !/^\s*[[{"\dtfn-]/.test(text)) return undefined;
  try {
    return parse(text);
  } catch {
    return undefined;
  }
}

export const pretty = (value) => stringify(value, 2);

// Lines of 16 bytes: where, in hexadecimal, and as text.
export function hexLines(bytes, count) {
  const lines = [];
  for (let at = 0; at < Math.min(bytes.length, count); at += 16) {
    const part = [...bytes.subarray(at, Math.min(at + 16, count))];
    const codes = part.map((byte) => byte.toString(16).padStart(2, "0"));
    const left = codes.slice(0, 8).join(" ").padEnd(23);
    const right = codes.slice(8).join(" ").padEnd(23);
    const text = part.map((byte) => (byte >= 32 && byte < 127 ? String.fromCharCode(byte) : ".")).join("");
    lines.push(`${at.toString(16).padStart(8, "0")}  ${left}  ${right}  ${text}`);
  }
  return lines.join("\n");
}

// A message as lines that can be compared: key, headers, and the value, JSON in its usual form.
export function comparable(detail) {
  const key = detail.key_base64 === null ? "(none)" : asText(fromBase64(detail.key_base64));
  const headers = detail.headers.map(([name, content]) => `header ${name}: ${asText(fromBase64(content))}`);
  if (detail.value_base64 === null) return [`key: ${key}`, ...headers, "(deleted)"];
  const bytes = fromBase64(detail.value_base64);
  const text = maybeText(bytes);
  const json = maybeJson(text);
  const value = json !== undefined ? pretty(json) : (text ?? hexLines(bytes, 64 * 1024));
  return [`key: ${key}`, ...headers.sort(), ...value.split("\n")];
}

const asText = (bytes) => maybeText(bytes) ?? `base64 ${toBase64(bytes)}`;

// The difference of two lists of lines: [sign, line], where the sign is " ", "-" or "+".
export function difference(before, after) {
  let head = 0;
  while (head < before.length && head < after.length && before[head] === after[head]) head += 1;
  let tail = 0;
  while (tail < before.length - head && tail < after.length - head && before.at(-1 - tail) === after.at(-1 - tail)) tail += 1;
  const middle = changes(before.slice(head, before.length - tail), after.slice(head, after.length - tail));
  const same = (lines) => lines.map((line) => [" ", line]);
  return [...same(before.slice(0, head)), ...middle, ...same(before.slice(before.length - tail))];
}

function changes(before, after) {
  const all = [...before.map((line) => ["-", line]), ...after.map((line) => ["+", line])];
  if (!before.length || !after.length || before.length > LINES_MAX || after.length > LINES_MAX) return all;
  // The longest common subsequence, from the end.
  const width = after.length + 1;
  const longest = new Uint16Array((before.length + 1) * width);
  for (let i = before.length - 1; i >= 0; i -= 1) {
    for (let j = after.length - 1; j >= 0; j -= 1) {
      const at = i * width + j;
      longest[at] = before[i] === after[j] ? longest[at + width + 1] + 1 : Math.max(longest[at + width], longest[at + 1]);
    }
  }
  const found = [];
  let i = 0;
  let j = 0;
  while (i < before.length && j < after.length) {
    if (before[i] === after[j]) {
      found.push([" ", before[i]]);
      i += 1;
      j += 1;
    } else if (longest[(i + 1) * width + j] >= longest[i * width + j + 1]) found.push(["-", before[i++]]);
    else found.push(["+", after[j++]]);
  }
  while (i < before.length) found.push(["-", before[i++]]);
  while (j < after.length) found.push(["+", after[j++]]);
  return found;
}
