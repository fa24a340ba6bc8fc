// The results, newest first, in rows of equal height.
import {byId, icon, make, PLAY} from './dom.js';
import {addressOfResult, allJobs, hasEnded, isVideo, promptOf} from './jobs.js';
import {openViewer, redrawViewer} from './viewer.js';

const tiles = new Map();

// All results: {key, job, result, index}.
export function results() {
  const all = [];
  for (const job of allJobs().reverse()) {
    if (!hasEnded(job)) continue;
    (job.results ?? []).forEach((result, index) => all.push({key: `${job.id}/${index}`, job, result, index}));
  }
  return all;
}

// Pictures are loaded when they come near the window.
const seen = new IntersectionObserver(entries => {
  for (const {isIntersecting, target} of entries) {
    if (!isIntersecting) continue;
    seen.unobserve(target);
    target.load();
  }
}, {rootMargin: '600px'});

function makeTile({key, job, result, index}) {
  const video = isVideo(result), prompt = promptOf(job);
  const media = video ? make('video', {muted: true, playsInline: true, preload: 'metadata', tabIndex: -1, 'aria-hidden': 'true'})
                      : make('img', {alt: '', decoding: 'async', width: result.width, height: result.height});
  const name = `${video ? 'Video' : 'Picture'}: ${prompt}`;
  const button = make('button', {type: 'button', className: 'tile', 'aria-label': name, 'aria-haspopup': 'dialog'}, media,
                      video ? make('span', {className: 'badge'}, icon(...PLAY)) : null,
                      make('span', {className: 'caption', 'aria-hidden': 'true', textContent: prompt}));
  const root = make('li', {}, button);
  root.style.setProperty('--ratio', String(result.width > 0 && result.height > 0 ? result.width / result.height : 1));
  button.addEventListener('click', () => openViewer(key, results));
  root.load = async () => {
    try {
      media.src = await addressOfResult(job, index);
    } catch {
      button.classList.add('lost');
    }
  };
  media.addEventListener('error', () => button.classList.add('lost'));
  seen.observe(root);
  return root;
}

export function drawGallery() {
  const all = results(), list = byId('gallery'), keys = new Set(all.map(({key}) => key));
  for (const [key, tile] of tiles) {
    if (keys.has(key)) continue;
    tile.remove();
    tiles.delete(key);
  }
  all.forEach((each, place) => {
    if (!tiles.has(each.key)) tiles.set(each.key, makeTile(each));
    const tile = tiles.get(each.key);
    if (list.children[place] !== tile) list.insertBefore(tile, list.children[place] ?? null);
  });
  byId('gallery-count').textContent = all.length || '';
  byId('empty').hidden = all.length > 0;
  redrawViewer();
}

// Where the focus goes when the viewer closes.
export function focusTile(key) {
  (tiles.get(key)?.firstElementChild ?? byId('gallery').querySelector('button') ?? byId('gallery-title')).focus();
}
