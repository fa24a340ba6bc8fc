// The jobs of this owner, as far as the page knows them. They are asked for repeatedly, and followed while they run.
import {ApiError, addressOf, call, fetchBlob, followJob, forget} from './api.js';
import {announce, counted} from './dom.js';

const ENDED = ['succeeded', 'failed', 'cancelled', 'expired'];
const UNFINISHED = 'queued,running,encoding';
const PAGE = 100;
// Browsers open at most six connections to a host, for all tabs together, and each stream takes one.
const STREAMS = 2;
const SECONDS_BUSY = 3, SECONDS_IDLE = 15;

export const hasEnded = job => ENDED.includes(job.state);
export const isVideo = result => result.content_type.startsWith('video/');
export const pathOf = (job, index) => `v1/jobs/${job.id}/results/${index}`;
export const addressOfResult = (job, index) => addressOf(pathOf(job, index));
export const promptOf = job => [job.request?.prompt ?? ''].flat().join(' · ');
// Returns the number of results in words.
export const resultsOf = job => counted(job.results.length, job.results.every(isVideo) ? 'video' : 'picture');

const jobs = new Map();
const streams = new Map();
let onChange = () => {}, onReach = () => {}, timer = 0, isAsking = false;
let newest = '';  // the last job that the server has listed

// Sorts by name, which is the order in which jobs were accepted.
export const allJobs = () => [...jobs.values()].sort((a, b) => a.id < b.id ? -1 : 1);

function announceEnd(job) {
  if (job.state === 'succeeded') announce(`Finished: ${resultsOf(job)}.`);
  else if (job.state !== 'cancelled') announce(`A job ended without a result: ${job.error?.message ?? job.state}.`);
}

// Returns the seconds until the last step, estimated from the steps that the page has seen, or null if it has not seen enough.
export function secondsLeft({first, step, steps}) {
  if (!first || step <= first.step) return null;
  return (steps - step) * (performance.now() - first.at) / 1000 / (step - first.step);
}

// Each quarter of the progress is announced, not each step.
function announceProgress(before, job) {
  if (job.state !== 'running' || !(job.steps > 0)) return;
  if (before.state === 'queued') return announce('A job has begun.');
  const quarter = Math.floor(4 * job.step / job.steps);
  if (quarter > Math.floor(4 * (before.step ?? 0) / job.steps) && quarter < 4) announce(`${25 * quarter} percent.`);
}

function take(job) {
  const before = jobs.get(job.id);
  // A late answer, to a question asked before the job ended, does not bring the job back.
  if (before && hasEnded(before) && !hasEnded(job)) return;
  const now = {...before, ...job};
  if (now.state === 'running' && now.step > 0) now.first ??= {step: now.step, at: performance.now()};
  jobs.set(job.id, now);
  if (before && hasEnded(now) && !hasEnded(before)) announceEnd(now);
  else if (before) announceProgress(before, now);
  if (hasEnded(now) && now.previewAddress) {
    URL.revokeObjectURL(now.previewAddress);
    delete now.previewAddress;
  }
}

function drop(id) {
  const job = jobs.get(id);
  if (!job) return;
  job.results?.forEach((_, index) => forget(pathOf(job, index)));
  jobs.delete(id);
}

async function takeOne(id) {
  try {
    take(await call('GET', `v1/jobs/${id}`));
  } catch (error) {
    if (!(error instanceof ApiError) || error.status !== 404) throw error;
    drop(id);
  }
}

// Previews that arrive while one is being fetched are skipped.
async function takePreview(id) {
  const job = jobs.get(id);
  if (!job || job.isFetching) return;
  job.isFetching = true;
  try {
    const address = await fetchBlob(`v1/jobs/${id}/preview`), now = jobs.get(id), old = now?.previewAddress;
    if (!now || hasEnded(now)) return URL.revokeObjectURL(address);
    jobs.set(id, {...now, previewAddress: address});
    onChange();
    if (old) setTimeout(() => URL.revokeObjectURL(old), 2000);
  } catch {
    // The next preview may be fetched.
  } finally {
    const now = jobs.get(id);
    if (now) now.isFetching = false;
  }
}

function takeEvent(id, name, value) {
  if (name === 'preview') {
    takePreview(id);
    return null;
  }
  if (name === 'result' || !jobs.has(id)) return null;
  const {state, step, steps, place, error, warnings} = value;
  const known = Object.fromEntries(Object.entries({state, step, steps, place, error, warnings}).filter(([, part]) => part !== undefined));
  if (known.state && ENDED.includes(known.state)) {
    takeOne(id).then(changed, () => {});  // with its results
    return 'ended';
  }
  take({id, ...known});
  changed();
  return null;
}

// Follows the jobs that run, and those that run next, while somebody may be looking.
function followSome() {
  const unfinished = allJobs().filter(job => !hasEnded(job));
  unfinished.sort((a, b) => (a.state === 'queued') - (b.state === 'queued'));
  const wanted = document.hidden ? [] : unfinished.slice(0, STREAMS).map(job => job.id);
  for (const [id, stream] of streams) {
    if (!wanted.includes(id)) stream.abort();
  }
  for (const id of wanted) {
    if (streams.has(id)) continue;
    const stream = new AbortController();
    streams.set(id, stream);
    followJob(id, stream.signal, (name, value) => takeEvent(id, name, value)).finally(() => {
      if (streams.get(id) === stream) streams.delete(id);
    });
  }
}

function changed() {
  followSome();
  onChange();
}

async function pages(query, after) {
  const all = [];
  for (;;) {
    const page = (await call('GET', `v1/jobs?limit=${PAGE}${query}${after ? `&after=${after}` : ''}`)).data;
    all.push(...page);
    if (page.length < PAGE) return all;
    after = page.at(-1).id;
  }
}

async function ask() {
  const waited = allJobs().filter(job => !hasEnded(job)).map(job => job.id);
  const fresh = await pages('', newest);
  fresh.forEach(take);
  newest = fresh.at(-1)?.id ?? newest;
  if (waited.length === 0) return;
  const unfinished = await pages(`&state=${UNFINISHED}`);
  unfinished.forEach(take);
  const still = new Set(unfinished.map(job => job.id));
  await Promise.all(waited.filter(id => !still.has(id) && jobs.has(id)).map(takeOne));
}

// Asks for everything that may have changed, and repeats this after a while.
async function askAgain() {
  clearTimeout(timer);
  if (isAsking) return;
  isAsking = true;
  try {
    await ask();
    onReach(true);
    changed();
  } catch (error) {
    onReach(error instanceof ApiError);
  } finally {
    isAsking = false;
    askLater();
  }
}

function askLater() {
  const isBusy = !document.hidden && allJobs().some(job => !hasEnded(job));
  clearTimeout(timer);
  timer = setTimeout(askAgain, 1000 * (isBusy ? SECONDS_BUSY : SECONDS_IDLE));
}

export function accept(job) {
  take(job);
  changed();
  askLater();
}

// A running job ends between two steps.
export async function cancel(id) {
  take({id, isCancelled: true});
  await call('DELETE', `v1/jobs/${id}`);
  await takeOne(id);
  changed();
}

export async function remove(id) {
  try {
    await call('DELETE', `v1/jobs/${id}`);
  } catch (error) {
    if (!(error instanceof ApiError) || error.status !== 404) throw error;
  }
  drop(id);
  changed();
}

// `draw` is called after every change, and `tellReach` with whether the server answers.
export function startJobs(draw, tellReach) {
  onChange = draw;
  onReach = tellReach;
  document.addEventListener('visibilitychange', () => {
    followSome();
    if (!document.hidden) askAgain();
  });
  return askAgain();
}
