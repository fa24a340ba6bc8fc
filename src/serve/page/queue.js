// The list of jobs that wait, run, or ended without a result.
import {byId, confirmed, counted, drawTexts, duration, make, notice} from './dom.js';
import {allJobs, cancel, hasEnded, promptOf, remove, secondsLeft} from './jobs.js';

const cards = new Map();

function timeLeft(job) {
  const seconds = secondsLeft(job);
  return seconds === null ? '' : ` · about ${duration(seconds)} left`;
}

function wordsOf(job) {
  switch (job.state) {
    case 'queued': {
      const ahead = job.place?.jobs_ahead, begins = job.place?.begins_in;
      const place = ahead == null ? 'Waiting' : ahead === 0 ? 'Next' : `${counted(ahead, 'job')} ahead`;
      return begins != null ? `${place} · begins in about ${duration(begins)}` : place;
    }
    case 'running':
      if (job.isCancelled) return 'Ends after this step';
      return job.steps > 0 ? `Step ${job.step ?? 0} of ${job.steps}${timeLeft(job)}` : 'Running';
    case 'encoding': return 'Writing the result';
    case 'expired': return 'Not done in time';
    default: return job.error?.message ?? 'Failed';
  }
}

const STATES = {queued: 'Waiting', running: 'Running', encoding: 'Running', failed: 'Failed', expired: 'Expired'};

// A tag beside the words shows the state, so that no one has to rely on colour.
function draw(card, job) {
  const {root, tag, prompt, words, warnings, bar, picture, button, again} = card, ended = hasEnded(job);
  root.dataset.state = job.state;
  tag.textContent = STATES[job.state] ?? job.state;
  if (prompt.textContent !== promptOf(job)) prompt.textContent = promptOf(job);
  words.textContent = wordsOf(job);
  drawTexts(warnings, job.warnings ?? []);
  bar.hidden = ended;
  bar.max = Math.max(job.steps ?? 1, 1);
  bar.value = job.state === 'encoding' ? bar.max : job.step ?? 0;
  bar.textContent = words.textContent;
  const {width, height} = job.request ?? {};
  if (width > 0 && height > 0) picture.parentElement.style.setProperty('--ratio', String(width / height));
  if (job.previewAddress && picture.src !== job.previewAddress) picture.src = job.previewAddress;
  picture.hidden = !picture.src;
  button.textContent = ended ? 'Dismiss' : 'Cancel';
  again.hidden = !ended;
}

function focusAfter(root) {
  const next = root.nextElementSibling ?? root.previousElementSibling;
  (next?.querySelector('button:not([hidden])') ?? byId('queue-title')).focus();
}

async function end(card, id) {
  const job = allJobs().find(each => each.id === id);
  if (!job) return;
  if (!hasEnded(job) && job.state !== 'queued' && !await confirmed('Cancel the job that is running?', 'Cancel the job')) return;
  if (card.root.contains(document.activeElement)) focusAfter(card.root);
  try {
    await (hasEnded(job) ? remove(id) : cancel(id));
  } catch (error) {
    notice(error.message, true);
  }
}

function makeCard(job, useSettings) {
  const tag = make('span', {className: 'tag'}), prompt = make('p', {className: 'prompt', id: `job-${job.id}`});
  const words = make('p', {className: 'words'}), bar = make('progress', {'aria-labelledby': prompt.id});
  const warnings = make('ul', {className: 'warnings', 'aria-label': 'Warnings', hidden: true});
  const picture = make('img', {alt: 'Preview', hidden: true});
  const button = make('button', {type: 'button', className: 'quiet', 'aria-describedby': prompt.id});
  const again = make('button', {type: 'button', className: 'quiet', textContent: 'Use these settings', 'aria-describedby': prompt.id});
  const root = make('li', {className: 'card'}, make('div', {className: 'thumb'}, picture),
                    make('div', {className: 'what'}, prompt, bar, make('div', {className: 'line'}, tag, words), warnings),
                    make('div', {className: 'ends'}, button, again));
  const card = {root, tag, prompt, words, warnings, bar, picture, button, again};
  button.addEventListener('click', () => end(card, job.id));
  again.addEventListener('click', () => useSettings(allJobs().find(each => each.id === job.id).request));
  return card;
}

// Jobs that run come first, then those that wait, then those that failed.
const ORDER = {running: 0, encoding: 0, queued: 1, failed: 2, expired: 2};

export function drawQueue(useSettings) {
  const shown = allJobs().filter(job => job.state in ORDER);
  shown.sort((a, b) => ORDER[a.state] - ORDER[b.state]);
  const list = byId('queue'), ids = new Set(shown.map(job => job.id));
  for (const [id, card] of cards) {
    if (ids.has(id)) continue;
    if (card.root.contains(document.activeElement)) focusAfter(card.root);
    card.root.remove();
    cards.delete(id);
  }
  shown.forEach((job, place) => {
    if (!cards.has(job.id)) cards.set(job.id, makeCard(job, useSettings));
    const card = cards.get(job.id);
    draw(card, job);
    // Moving an element takes the focus from it, so only elements that are out of place are moved.
    if (list.children[place] !== card.root) list.insertBefore(card.root, list.children[place] ?? null);
  });
  byId('queue-part').hidden = shown.length === 0;
  const unfinished = shown.filter(job => !hasEnded(job));
  byId('queue-count').textContent = unfinished.length || '';
  const running = unfinished.find(job => job.state === 'running' && job.steps > 0);
  const share = running ? `${Math.floor(100 * (running.step ?? 0) / running.steps)} % · ` : '';
  document.title = `${share}Tessera`;
}
