// The form: controls made from GET /v1/fields, the shapes of pictures, and the values that survive a reload of the page.
import {ApiError, call, submitJob} from './api.js';
import {announce, byId, duration, icon, make, notice, SWAP} from './dom.js';
import {makeControl} from './fields.js';

const ROWS = [['prompt'], ['negative_prompt'], ['image'], ['width', 'height'], ['num_frames', 'fps'], ['num_inference_steps', 'guidance_scale'],
              ['seed', 'num_images_per_prompt'], ['scheduler', 'format']];
const SHAPES = [['1:1', 1], ['4:3', 4 / 3], ['3:4', 3 / 4], ['16:9', 16 / 9], ['9:16', 9 / 16]];
const GROUPS = {prompt: 'Prompt', image: 'Picture', video: 'Video', sampling: 'Sampling', model: 'Model', output: 'Output', memory: 'Memory'};
const DRAFT = 'tessera-draft';

const controls = new Map();

// Sizes of about as many pixels as the model's own, in multiples of 16.
function sizeOfShape(ratio, {width, height}) {
  const pixels = width.field.default * height.field.default, near = side => Math.max(16, 16 * Math.round(side / 16));
  return ratio === 1 && width.field.default === height.field.default
      ? [width.field.default, height.field.default] : [near(Math.sqrt(pixels * ratio)), near(Math.sqrt(pixels / ratio))];
}

function addShapes(row) {
  const [width, height] = [controls.get('width'), controls.get('height')];
  const set = (w, h) => {
    width.write(w);
    height.write(h);
    changed();
  };
  const swap = make('button', {type: 'button', className: 'swap', 'aria-label': 'Swap width and height', title: 'Swap width and height'}, icon(...SWAP));
  swap.addEventListener('click', () => set(height.input.value, width.input.value));
  const chips = make('div', {className: 'chips', role: 'group', 'aria-label': 'Shape'}), hasSize = width.field.default && height.field.default;
  for (const [name, ratio] of hasSize ? SHAPES : []) {
    const [w, h] = sizeOfShape(ratio, {width, height});
    const chip = make('button', {type: 'button', textContent: name, title: `${w} × ${h}`});
    chip.addEventListener('click', () => set(w, h));
    chip.update = () => chip.setAttribute('aria-pressed', String(Number(width.input.value) === w && Number(height.input.value) === h));
    chips.append(chip);
  }
  chips.append(swap);
  row.after(chips);
}

function changed() {
  for (const chip of document.querySelectorAll('.chips button')) chip.update?.();
  const count = [...controls.values()].filter(control => !control.isMain && control.isChanged()).length;
  byId('more').querySelector('summary').textContent = count ? `More settings (${count} changed)` : 'More settings';
  const draft = {};
  for (const [name, {input}] of controls) {
    if (input.type !== 'file') draft[name] = input.type === 'checkbox' ? input.checked : input.value;
  }
  sessionStorage.setItem(DRAFT, JSON.stringify(draft));
}

function restoreDraft() {
  const draft = JSON.parse(sessionStorage.getItem(DRAFT) ?? '{}');
  for (const [name, control] of controls) {
    if (name in draft) control.write(draft[name]);
  }
}

// What a request contains besides the fields of the model.
function formatField(fields) {
  const isVideo = fields.some(({name}) => name === 'num_frames');
  const [usual, ...choices] = isVideo ? ['mp4', 'webm', 'gif'] : ['png', 'jpg', 'webp'];
  return {name: 'format', type: 'text', group: 'output', default: null, usual, choices, help: 'The kind of file; settings come back from a PNG alone'};
}

function build(fields) {
  const byName = new Map([...fields, formatField(fields)].map(field => [field.name, {default: null, minimum: null, maximum: null, ...field}]));
  if (byName.has('num_frames') && byName.has('num_images_per_prompt')) byName.get('num_images_per_prompt').label = 'Videos';
  const add = (name, isMain) => {
    const control = makeControl(byName.get(name), isMain);
    controls.set(name, control);
    byName.delete(name);
    return control.root;
  };
  for (const names of ROWS) {
    const present = names.filter(name => byName.has(name));
    if (present.length === 0) continue;
    const row = make('div', {className: present.length > 1 ? 'row' : 'row single'}, ...present.map(name => add(name, true)));
    byId('main-fields').append(row);
    if (present.includes('width') && present.includes('height')) addShapes(row);
  }
  for (const group of new Set([...byName.values()].map(field => field.group))) {
    const names = [...byName.values()].filter(field => field.group === group).map(field => field.name);
    const part = make('fieldset', {}, make('legend', {textContent: GROUPS[group] ?? 'Other'}), ...names.map(name => add(name, false)));
    byId('more-fields').append(part);
  }
  byId('more').hidden = byId('more-fields').childElementCount === 0;
}

// Puts the cursor into the first field that has a fault.
function focusFault(control) {
  if (!control.isMain) byId('more').open = true;
  control.input.focus();
}

function showErrors() {
  const wrong = [...controls.values()].filter(({input}) => !input.checkValidity());
  for (const control of wrong) control.show(control.input.validationMessage);
  if (wrong.length > 0) focusFault(wrong[0]);
  return wrong.length > 0;
}

function showRefusal(error) {
  const control = controls.get(error.parameter);
  if (control) {
    const message = error.message.replace(new RegExp(`^(\\[${error.parameter}\\]|${error.parameter}:) `), '');  // the name stands above it
    control.show(message[0].toUpperCase() + message.slice(1));
    focusFault(control);
    notice('');
    return;
  }
  const hint = error.retryAfter ? ` Try again in ${duration(error.retryAfter)}.` : '';
  notice(error instanceof ApiError ? error.message + hint : 'The server does not answer. Nothing was lost: try again.', true);
}

// A seed may be too large for a number to hold exactly, so the JSON is put together from texts.
async function bodyOf() {
  const parts = new Map();
  for (const [name, control] of controls) {
    const json = await control.read();
    if (json !== null) parts.set(name, json);
  }
  // A size given by its name replaces one in pixels.
  if (parts.has('resolution')) ['width', 'height'].forEach(name => parts.delete(name));
  return `{${[...parts].map(([name, json]) => `${JSON.stringify(name)}: ${json}`).join(', ')}}`;
}

async function submit(take) {
  if (byId('submit').getAttribute('aria-disabled') === 'true' || showErrors()) return;
  byId('submit').setAttribute('aria-disabled', 'true');
  notice('');
  try {
    take(await submitJob(await bodyOf()));
    announce('The job is in the queue.');
  } catch (error) {
    showRefusal(error);
  } finally {
    byId('submit').removeAttribute('aria-disabled');
  }
}

// Fills in the fields of a request, such as that of a job or a PNG. Returns the names of the fields that this model has.
export function fill(request) {
  for (const [name, control] of controls) {
    if (name !== 'format') control.restore();
    if (request[name] !== undefined && request[name] !== null) control.write(request[name]);
  }
  changed();
  return [...controls.keys()].filter(name => name in request);
}

// Builds the form. `take` is called with the jobs that are accepted.
export async function startForm(take) {
  const table = await call('GET', 'v1/fields');
  build(table.data);
  restoreDraft();
  changed();
  const form = byId('form');
  form.addEventListener('input', changed);
  form.addEventListener('submit', event => {
    event.preventDefault();
    submit(take);
  });
  form.addEventListener('keydown', event => {
    if (event.key !== 'Enter' || !(event.ctrlKey || event.metaKey)) return;
    event.preventDefault();
    submit(take);
  });
  byId('reset').addEventListener('click', () => {
    for (const control of controls.values()) control.restore();
    changed();
    notice('All fields have their defaults again.');
    controls.get('prompt')?.input.focus();
  });
  if (navigator.platform.startsWith('Mac')) form.querySelector('kbd').textContent = '⌘ ↵';
  return table;
}
