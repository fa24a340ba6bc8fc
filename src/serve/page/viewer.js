// The large view of a result with its settings.
import {addressOfResult, isVideo, promptOf, remove, resultsOf} from './jobs.js';
import {byId, confirmed, drawTexts, make, notice} from './dom.js';
import {labelOf} from './fields.js';

// The settings that are shown at once, in this order. The rest of the request is folded away.
const FIRST = ['negative_prompt', 'seed', 'width', 'height', 'num_frames', 'fps', 'num_inference_steps', 'guidance_scale', 'scheduler'];

let current = null, results = () => [], shownKey = null;

const indexOf = all => all.findIndex(({key}) => key === current);

function isSaid(value) {
  return value !== null && value !== undefined && value !== '' && !(Array.isArray(value) && value.join('') === '');
}

function settingsOf({job, result, index}) {
  const said = {...job.request, seed: job.seeds?.[index] ?? job.request?.seed};
  delete said.prompt;
  const size = `${result.width ?? said.width} × ${result.height ?? said.height}`;
  const pairOf = name => name === 'width' ? ['Size', size] : [labelOf(name), wordsOf(said[name])];
  const pairsOf = names => names.filter(name => isSaid(said[name]) && name !== 'height').map(pairOf);
  const first = pairsOf(FIRST);
  if (job.started && job.ended) first.push(['Took', `${(job.ended - job.started).toFixed(1)} s`]);
  if (job.ended) first.push(['Finished', new Date(1000 * job.ended).toLocaleString()]);
  return {first, rest: pairsOf(Object.keys(said).filter(name => !FIRST.includes(name)))};
}

const wordsOf = value => value === true ? 'yes' : value === false ? 'no' : [value].flat().join(', ');
const list = pairs => pairs.map(([name, value]) => make('div', {}, make('dt', {textContent: name}), make('dd', {textContent: value})));

function fileName({job, result, index}) {
  const words = promptOf(job).toLowerCase().replace(/[^\p{L}\p{N}]+/gu, '-').replace(/^-|-$/g, '').slice(0, 60);
  const ending = {'image/jpeg': 'jpg', 'image/webp': 'webp', 'image/gif': 'gif', 'video/mp4': 'mp4', 'video/webm': 'webm'}[result.content_type] ?? 'png';
  return `${words || 'tessera'}-${job.seeds?.[index] ?? index}.${ending}`;
}

async function drawMedia(each) {
  const {job, result, index, key} = each, stage = byId('stage');
  const address = await addressOfResult(job, index).catch(() => '');
  if (shownKey !== key) return;
  const size = {width: result.width, height: result.height};
  const media = isVideo(result) ? make('video', {...size, src: address, controls: true, loop: true, playsInline: true, muted: true, 'aria-label': promptOf(job)})
                                : make('img', {...size, src: address, alt: promptOf(job)});
  // A small picture is shown at most three times as large as it is.
  media.style.setProperty('--most-width', `${3 * (result.width ?? 1000)}px`);
  media.style.setProperty('--ratio', String((result.width ?? 1) / (result.height ?? 1)));
  stage.replaceChildren(media);
  const download = byId('viewer-download');
  download.href = address;
  download.download = fileName(each);
}

function draw() {
  const all = results(), at = indexOf(all), each = all[at];
  if (!each) return;
  byId('viewer-place').textContent = `${at + 1} of ${all.length}`;
  byId('viewer-newer').disabled = at === 0;
  byId('viewer-older').disabled = at === all.length - 1;
  if (shownKey === each.key) return;
  shownKey = each.key;
  byId('viewer-title').textContent = `Result ${at + 1} of ${all.length}`;
  byId('viewer-prompt').textContent = promptOf(each.job);
  drawTexts(byId('viewer-warnings'), each.job.warnings ?? []);
  const {first, rest} = settingsOf(each);
  byId('viewer-settings').replaceChildren(...list(first));
  byId('viewer-rest').replaceChildren(...list(rest));
  byId('viewer-more').hidden = rest.length === 0;
  drawMedia(each);
}

// Follows changes of the list while the view is open: the result that is shown may have been removed or have moved.
export function redrawViewer() {
  if (!byId('viewer').open) return;
  if (indexOf(results()) < 0) byId('viewer').close();
  else draw();
}

function turn(by) {
  const all = results(), next = all[indexOf(all) + by];
  if (!next) return;
  current = next.key;
  draw();
  const button = byId(by < 0 ? 'viewer-newer' : 'viewer-older');
  if (button.disabled && document.activeElement === document.body) byId('viewer-close').focus();
}

async function removeShown() {
  const all = results(), at = indexOf(all), {job} = all[at];
  const what = job.results.length > 1 ? `Delete the ${resultsOf(job)} of this job?` : isVideo(job.results[0]) ? 'Delete this video?' : 'Delete this picture?';
  if (!await confirmed(what, 'Delete')) return;
  const next = all.slice(at).find(each => each.job.id !== job.id) ?? all.slice(0, at).findLast(each => each.job.id !== job.id);
  current = next?.key ?? null;  // which stays, and is drawn as soon as the other one has gone
  try {
    await remove(job.id);
  } catch (error) {
    byId('viewer').close();
    notice(error.message, true);
  }
}

export function openViewer(key, all) {
  current = key;
  results = all;
  shownKey = null;
  byId('viewer').returnValue = '';
  byId('viewer').showModal();
  draw();
}

export function startViewer(useSettings, focusTile) {
  const viewer = byId('viewer');
  byId('viewer-newer').addEventListener('click', () => turn(-1));
  byId('viewer-older').addEventListener('click', () => turn(1));
  byId('viewer-close').addEventListener('click', () => viewer.close());
  byId('viewer-delete').addEventListener('click', removeShown);
  byId('viewer-use').addEventListener('click', () => viewer.close('use'));
  viewer.addEventListener('keydown', event => {
    if (event.target.tagName === 'VIDEO') return;  // which seeks with these keys
    if (event.key === 'ArrowLeft') turn(-1);
    else if (event.key === 'ArrowRight') turn(1);
  });
  viewer.addEventListener('close', () => {
    byId('stage').replaceChildren();
    shownKey = null;
    const used = viewer.returnValue === 'use' && results().find(({key}) => key === current);
    if (used) useSettings(used.job.request);
    else focusTile(current);
  });
}
