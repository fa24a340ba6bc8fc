// Calls the server, with a key if it asks for one; turns errors into exceptions, and reads streams of events.
// Addresses are relative to the page, so that it also works below a path of a reverse proxy.
import {byId} from './dom.js';

const KEY = 'tessera-key';

export class ApiError extends Error {
  constructor(status, message, parameter = null, retryAfter = null) {
    super(message);
    Object.assign(this, {status, parameter, retryAfter});
  }
}

export const hasKey = () => sessionStorage.getItem(KEY) !== null;

let asking = null;

// Asks for a key. All callers that need one wait for the same dialog.
export function askForKey(reason) {
  asking ??= new Promise(resolve => {
    const dialog = byId('key'), input = byId('key-input');
    if (reason) byId('key-reason').textContent = reason;
    input.value = '';
    const keep = () => {
      sessionStorage.setItem(KEY, input.value.trim());
      byId('key-button').hidden = false;
    };
    byId('key-form').addEventListener('submit', keep, {once: true});
    dialog.addEventListener('close', () => {
      byId('key-form').removeEventListener('submit', keep);
      asking = null;
      resolve();
    }, {once: true});
    dialog.showModal();
  });
  return asking;
}

const waiting = seconds => new Promise(done => setTimeout(done, seconds * 1000));

async function errorOf(response) {
  let error = {};
  try {
    error = (await response.json()).error ?? {};
  } catch {
    // A proxy answers in its own words.
  }
  const message = error.message ?? `The server answered with status ${response.status}.`;
  return new ApiError(response.status, message, error.param ?? null, Number(response.headers.get('Retry-After')) || null);
}

// Fetches with the key. If the server refuses it, asks for another one and tries again; if the dialog is closed without
// one, returns the refusal. With the header X-Requested-With the server does not offer the scheme Basic, for which
// browsers would ask for a name and a password themselves.
async function request(path, options = {}) {
  for (;;) {
    const key = sessionStorage.getItem(KEY);
    const headers = {'X-Requested-With': 'fetch', ...options.headers, ...(key ? {Authorization: `Bearer ${key}`} : {})};
    const response = await fetch(path, {...options, headers, cache: 'no-store'});
    if (response.status !== 401) return response;
    if (key === sessionStorage.getItem(KEY)) await askForKey(key ? 'The server does not know this key.' : null);
    if (key === sessionStorage.getItem(KEY)) return response;
  }
}

// Reads JSON with seeds as texts, because they may be too large for a number to hold exactly. Inside a string of JSON the
// quotes around these names would be escaped, so only keys match.
function parse(text) {
  return JSON.parse(text.replace(/"(seeds?)"(\s*:\s*)(\d+|\[[\d\s,]*\])/g,
                                 (_, name, colon, value) => `"${name}"${colon}${value.replace(/\d+/g, '"$&"')}`));
}

export async function call(method, path, {body, headers} = {}) {
  const response = await request(path, {method, body, headers: {...headers, ...(body ? {'Content-Type': 'application/json'} : {})}});
  if (!response.ok) throw await errorOf(response);
  const text = await response.text();
  return text ? parse(text) : null;
}

// Sends a job. If the answer is lost, the job is sent again with the same key, so that the server accepts it only once.
export async function submitJob(body) {
  const key = [...crypto.getRandomValues(new Uint8Array(16))].map(byte => byte.toString(16).padStart(2, '0')).join('');
  for (let attempt = 1;; attempt++) {
    try {
      return await call('POST', 'v1/jobs', {body, headers: {'Idempotency-Key': key}});
    } catch (error) {
      if (error instanceof ApiError || attempt === 3) throw error;
      await waiting(attempt);
    }
  }
}

// Returns the address of a file for an element. Elements cannot send a key, so with one the file is fetched here.
const blobs = new Map();
export async function addressOf(path) {
  if (!hasKey()) return path;
  if (!blobs.has(path)) blobs.set(path, fetchBlob(path));
  return blobs.get(path);
}

export async function fetchBlob(path) {
  const response = await request(path);
  if (!response.ok) throw await errorOf(response);
  return URL.createObjectURL(await response.blob());
}

export function forget(path) {
  blobs.get(path)?.then(URL.revokeObjectURL, () => {});
  blobs.delete(path);
}

// Splits a stream of events into {id, name, data}. Lines may be cut anywhere between two chunks.
export class EventReader {
  #rest = '';
  #event = {data: []};

  take(text) {
    const lines = (this.#rest + text).split('\n'), events = [];
    this.#rest = lines.pop();
    for (const line of lines) {
      if (line === '') {
        const {id, name, data} = this.#event;
        if (data.length > 0) events.push({id, name: name ?? 'message', data: data.join('\n')});
        this.#event = {data: []};
      } else if (!line.startsWith(':')) {
        const [, field, value] = line.match(/^([^:]*):? ?(.*)$/s);
        if (field === 'data') this.#event.data.push(value);
        else if (field === 'event') this.#event.name = value;
        else if (field === 'id') this.#event.id = value;
      }
    }
    return events;
  }
}

// Calls `take(name, value)` with each event of a job until the server ends the stream or `signal` does. After a lost
// connection the stream continues behind the last event that was received.
export async function followJob(id, signal, take) {
  let last = null, wait = 0.5;
  while (!signal.aborted) {
    try {
      const response = await request(`v1/jobs/${id}/events?previews=1`,
                                     {signal, headers: last === null ? {} : {'Last-Event-ID': last}});
      if (!response.ok) throw await errorOf(response);
      const reader = response.body.pipeThrough(new TextDecoderStream()).getReader(), events = new EventReader();
      for (;;) {
        const {done, value} = await reader.read();
        if (done) break;
        for (const event of events.take(value)) {
          last = event.id ?? last;
          wait = 0.5;
          if (take(event.name, parse(event.data)) === 'ended') return;
        }
      }
    } catch (error) {
      if (signal.aborted || error instanceof ApiError && error.status < 500) return;
    }
    await waiting(wait);
    wait = Math.min(2 * wait, 15);
  }
}
