// A message as code that publishes it again: Python, curl and redis-cli. Whatever is in the message,
// what a shell or Python reads is exactly that.

import { fromBase64, maybeJson, maybeText, toBase64 } from "/dashboard/pages/explorer_values.js";

// For a POSIX shell: nothing in single quotes means anything, but for the quote itself.
export const shellQuoted = (text) => (/^[A-Za-z0-9_./:@%+=-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`);

const PYTHON_ESCAPES = { "\\": "\\\\", "\n": "\\n", "\r": "\\r", "\t": "\\t" };

// The quote that needs no escapes, as Python itself chooses it: JSON stays readable.
const quoteFor = (text) => (text.includes('"') && !text.includes("'") ? "'" : '"');

export function pythonText(text) {
  const quote = quoteFor(text);
  let made = "";
  for (const one of text) {
    const code = one.codePointAt(0);
    if (one === quote) made += `\\${one}`;
    else if (PYTHON_ESCAPES[one]) made += PYTHON_ESCAPES[one];
    else if (code < 32 || code === 127) made += `\\x${code.toString(16).padStart(2, "0")}`;
    // Marks that change how a line looks are shown, not used.
    else if (/\p{C}|\p{Zl}|\p{Zp}/u.test(one)) made += code > 0xffff ? `\\U${code.toString(16).padStart(8, "0")}` : `\\u${code.toString(16).padStart(4, "0")}`;
    else made += one;
  }
  return `${quote}${made}${quote}`;
}

export function pythonBytes(bytes) {
  const quote = bytes.includes(34) && !bytes.includes(39) ? "'" : '"';
  let made = "";
  for (const byte of bytes) {
    const one = String.fromCharCode(byte);
    if (one === quote) made += `\\${one}`;
    else if (PYTHON_ESCAPES[one]) made += PYTHON_ESCAPES[one];
    else made += byte >= 32 && byte < 127 ? one : `\\x${byte.toString(16).padStart(2, "0")}`;
  }
  return `b${quote}${made}${quote}`;
}

const pythonValue = (bytes) => {
  const text = maybeText(bytes);
  return text === null ? pythonBytes(bytes) : pythonText(text);
};

// The parts of a message: bytes, and null for what it does not have.
export function partsOf(detail) {
  return {
    topic: detail.topic,
    key: detail.key_base64 === null ? null : fromBase64(detail.key_base64),
    headers: detail.headers.map(([name, content]) => [name, fromBase64(content)]),
    value: detail.value_base64 === null ? null : fromBase64(detail.value_base64),
  };
}

export function pythonCode(parts, address) {
  const given = [pythonText(parts.topic), parts.value === null ? "None" : pythonValue(parts.value)];
  if (parts.key !== null) given.push(`key=${pythonValue(parts.key)}`);
  if (parts.headers.length) {
    const entries = parts.headers.map(([name, content]) => `${pythonText(name)}: ${pythonBytes(content)}`);
    given.push(`headers={${entries.join(", ")}}`);
  }
  return `import fanlog.sync

with fanlog.sync.connect(${pythonText(address)}) as client:
    client.publish(
        ${given.join(",\n        ")},
    )
`;
}

// As the body of POST /v1/topics/{topic}/messages; a value that says it is JSON stays as it was written.
export function messageJson({ key, headers, value }) {
  const fields = [];
  const add = (name, content) => fields.push(`${JSON.stringify(name)}:${content}`);
  if (key !== null) {
    const text = maybeText(key);
    if (text === null) add("key_base64", JSON.stringify(toBase64(key)));
    else add("key", JSON.stringify(text));
  }
  const texts = headers.filter(([, content]) => maybeText(content) !== null);
  const others = headers.filter(([, content]) => maybeText(content) === null);
  if (texts.length) add("headers", JSON.stringify(Object.fromEntries(texts.map(([name, content]) => [name, maybeText(content)]))));
  if (others.length) add("headers_base64", JSON.stringify(Object.fromEntries(others.map(([name, content]) => [name, toBase64(content)]))));
  const text = value === null ? null : maybeText(value);
  const saysJson = headers.some(([name, content]) => name.toLowerCase() === "content-type" && /^(application|text)\/(.+\+)?json/i.test(maybeText(content) ?? ""));
  if (value === null) add("deleted", "true");
  else if (text === null) add("base64", JSON.stringify(toBase64(value)));
  else if (saysJson && maybeJson(text) !== undefined) add("json", text);
  else add("text", JSON.stringify(text));
  return `{${fields.join(",")}}`;
}

export function curlCode(parts, origin) {
  const address = `${origin}/v1/topics/${encodeURIComponent(parts.topic)}/messages`;
  return `curl ${shellQuoted(address)} \\
  -H 'Content-Type: application/json' \\
  --data-binary ${shellQuoted(messageJson(parts))}
`;
}

export function redisCode(parts, host) {
  const where = `-h ${shellQuoted(host)} -p 7421`;
  const topic = shellQuoted(parts.topic);
  const left = [parts.key !== null && "key", parts.headers.length > 0 && "headers"].filter(Boolean);
  const note = left.length ? `# Redis has no ${left.join(" and no ")}: they are left out.\n` : "";
  if (parts.value === null) return `${note}# Redis can't publish a message without a value.\n`;
  const text = maybeText(parts.value);
  // A shell can't hand over a zero byte.
  if (text !== null && !text.includes("\0")) return `${note}redis-cli ${where} PUBLISH ${topic} ${shellQuoted(text) || "''"}\n`;
  const octal = [...parts.value].map((byte) => `\\${byte.toString(8).padStart(3, "0")}`).join("");
  return `${note}printf '${octal}' | redis-cli ${where} -x PUBLISH ${topic}\n`;
}
